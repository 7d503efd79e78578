"""Dataset sources: each lists the images of one dataset as ImageRecords."""
