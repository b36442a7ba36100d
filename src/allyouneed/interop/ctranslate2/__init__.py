"""CTranslate2: our softmax Transformers in the fastest decoder for CPUs."""
