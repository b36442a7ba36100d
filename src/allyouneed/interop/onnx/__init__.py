"""ONNX: encoder and decoder step of our softmax Transformers as graphs that any runtime can run."""
