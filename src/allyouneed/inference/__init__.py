"""Fast inference: packed weights and fused stacks behind the same contract as the models they stand for."""
