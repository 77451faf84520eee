"""What a run will need, before anything is loaded: memory by phase, network evaluations, FLOPs, and what to change.

The policy's own code runs on tensors that have a shape and no storage (torch's FakeTensorMode), and every tensor that it
makes is counted while it lives. So nothing here knows a family, and a new one needs nothing here.
"""
