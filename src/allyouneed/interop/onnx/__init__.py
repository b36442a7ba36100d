"""ONNX: encoder and decoder step of our Transformers as graphs that any runtime can run."""
