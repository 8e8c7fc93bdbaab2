"""The real step beside its prediction: torch's own DistributedDataParallel or fully_shard over a workload's tensors."""
