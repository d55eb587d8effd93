"""The official ONNX tests against OpenNPU."""
