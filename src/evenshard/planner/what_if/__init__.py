"""Comparison of machines for the same tables: step time, memory and price by hardware and number of devices."""
