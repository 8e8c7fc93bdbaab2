"""What runs under torchrun: the only home of torch.distributed calls that are measured."""
