"""Export models for deployment: an ONNX file or int8 weights, checked against PyTorch."""
