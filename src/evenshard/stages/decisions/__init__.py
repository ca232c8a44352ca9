"""What follows from what was measured: is a new model better, do loops differ, is it time to train again?"""
