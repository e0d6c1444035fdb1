"""Export models for deployment: an ONNX file, in float32 or int8, checked against PyTorch."""
