"""All computation of the project: data, samplers, losses, models, training, evaluation."""
