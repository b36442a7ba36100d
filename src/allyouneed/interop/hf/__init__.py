"""Hugging Face folders (config.json, model.safetensors, tokenizer.json), read and written without their library."""
