"""The models that come with evenshard, one folder per simulated device, and how they were trained."""
