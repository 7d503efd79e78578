"""What is measured on trained winners beside their scores; none of it changes a training."""
