"""Dataset sources, which list the images of a dataset as ImageRecords."""
