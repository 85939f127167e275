"""The paper's networks, data and experiments, as Tasks. The names are here, so that reading them loads nothing."""

NAMES = ("lenet-300-100", "lenet-5-caffe", "wrn-16-4")
