"""The paper's networks, data and experiments, and one more, as Tasks. The names are here: reading them is cheap."""

NAMES = ("lenet-300-100", "lenet-5-caffe", "wrn-16-4", "mobile-100k")
