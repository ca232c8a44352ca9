"""What if the tables were trained on other machines: times, memory and prices of kinds and numbers of devices."""
