"""Export models for deployment: a file of ONNX or OpenVINO, checked against PyTorch."""
