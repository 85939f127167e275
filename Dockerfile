# Runs the demo: docker build -t softshare . && docker run softshare
# Other commands: docker run -v "$PWD:/work" softshare compress my_task.py:make_task --out runs/mine
FROM python:3.12-slim
COPY . /softshare
# uv knows where torch's build for the CPU is, which is much smaller than the build for CUDA.
RUN pip install --no-cache-dir uv \
    && uv pip install --system --no-cache --torch-backend cpu --requirement /softshare/locks/torch.txt \
    && uv pip install --system --no-cache --require-hashes --no-deps --requirement /softshare/locks/demo.txt \
    && uv pip install --system --no-cache --no-deps --no-build-isolation /softshare \
    && rm -r /softshare
RUN useradd --create-home user && mkdir /work && chown user /work
USER user
WORKDIR /work
ENTRYPOINT ["softshare"]
CMD ["demo", "--out", "runs/demo"]
