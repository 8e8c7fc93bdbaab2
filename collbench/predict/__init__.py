"""Workload + strategy + a model of the collectives -> what one training step takes.

workload    layers, bytes, milliseconds; read from TOML
captured    what torch issued for a workload, as its file keeps it
capture/    a torch module -> a workload; the only part that imports torch
buckets     DDP's gradient buckets, torch's own rule
placement   nodes and ranks -> the groups that communicate
timeline    plays tasks on streams; knows durations, not strategies
channels    the same where what runs at a time slows one another: gloo, shared links, computation beside collectives
order       in which FSDP's collectives and computations are issued
units       what sharded strategies gather and reduce at a time, and how it is padded
ddp, fsdp, fsdp1, zero
            a workload -> the tasks of one step
deepspeed   a DeepSpeed config, read
strategies  the registry of strategies and their options
memory      the per-rank ledger
cost        asks a model, each distinct call once
draws       the model's errors, drawn many times, and a step played in all draws at once
interval    the intervals of a step, from its draws
step        asks the model for every collective, plays the step, reports it
"""
