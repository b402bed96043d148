# docker build -t contexture .
# docker run --rm -v "$PWD:/here" -w /here contexture pretrain bert.tiny --dir runs/bert --data.path text
FROM python:3.11-slim

WORKDIR /contexture
COPY requirements.lock ./
RUN pip install --no-cache-dir -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY contexture contexture
COPY models models
COPY train train
COPY data data
COPY configs configs
COPY analysis analysis
RUN pip install --no-cache-dir --no-deps --no-build-isolation -e .

ENTRYPOINT ["contexture"]
