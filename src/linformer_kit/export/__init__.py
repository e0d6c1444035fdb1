"""Models for where they are served: an ONNX file or int8 weights, checked against PyTorch."""
