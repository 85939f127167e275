"""The paper's networks, data and experiments: Tasks like any other. The names stand here, where nothing is loaded."""

NAMES = ("lenet-300-100", "lenet-5-caffe", "wrn-16-4")
