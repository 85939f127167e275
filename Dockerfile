# Runs the demo: docker build -t softshare . && docker run softshare
# Other commands: docker run -v "$PWD:/work" softshare compress my_task.py:make_task --out runs/mine
FROM python:3.12-slim
# The packages come first, so that a change of the code does not install them again.
COPY locks/demo.txt locks/torch.txt locks/uv.txt /locks/
# uv knows where torch's build for the CPU is, which is much smaller than the build for CUDA.
RUN pip install --no-cache-dir --require-hashes --only-binary :all: --no-deps --requirement /locks/uv.txt \
    && uv pip install --system --no-cache --require-hashes --only-binary :all: --no-deps --requirement /locks/demo.txt \
    && uv pip install --system --no-cache --torch-backend cpu --requirement /locks/torch.txt
COPY . /softshare
RUN uv pip install --system --no-cache --no-deps --no-build-isolation /softshare
RUN useradd --create-home user && mkdir /work && chown user /work
USER user
WORKDIR /work
ENTRYPOINT ["softshare"]
CMD ["demo", "--out", "runs/demo"]
