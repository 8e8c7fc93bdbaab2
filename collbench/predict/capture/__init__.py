"""A torch module -> a workload, with the collectives that torch issues for it. No GPU, no network, any number of ranks.

loading   MODULE:FUNCTION -> a module on the meta device and its inputs
units     which of its modules are layers, which of these are FSDP units, and whose the parameters are
walk      one forward and backward on tensors without data: order, gradients' order, what each layer takes
recorder  a process group that notes what it is asked to send, and sends nothing
spent     what a layer took, and medians of it
reducer   DDP's buckets, by torch's own reducer
sharding  `fully_shard`, as the user applied it or by the units, and what it issues
trace     a profiler's trace -> the time of each layer
times     FLOPs or a device -> the time of each layer
module    all of it -> a Workload
"""
