"""The same tables on other machines: times, memory and prices of kinds and numbers of devices."""
