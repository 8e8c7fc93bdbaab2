"""Workload + strategy + a model of the collectives -> what one training step takes. Torch-free.

workload    layers, bytes, milliseconds; read from TOML
buckets     DDP's gradient buckets, torch's own rule
placement   nodes and ranks -> the groups that communicate
timeline    plays tasks on streams; knows durations, not strategies
ddp, fsdp   a workload -> the tasks of one step
strategies  the registry of strategies and their options
memory      the per-rank ledger
step        asks the model for every collective, plays the step, reports it
"""
