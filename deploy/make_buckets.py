"""Creates the missing buckets of a store; idempotent.

    python make_buckets.py http://127.0.0.1:8333 mlflow dvc

The keys come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
"""

import sys
import time
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

WAIT_SECONDS = 60.0


def make_buckets(endpoint: str, names: list[str]) -> list[str]:
    """Returns the names of the created buckets."""
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    there = {bucket["Name"] for bucket in _list_when_up(client)}
    missing = [name for name in names if name not in there]
    for name in missing:
        client.create_bucket(Bucket=name)
    return missing


def _list_when_up(client: Any) -> list[dict[str, Any]]:
    """Lists the buckets; waits for a store that has just started."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return list(client.list_buckets()["Buckets"])
        except ClientError as error:
            # Waiting does not fix wrong keys.
            if error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
                raise
            problem: Exception = error
        except BotoCoreError as error:
            problem = error
        if time.monotonic() > deadline:
            raise problem
        time.sleep(1.0)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: make_buckets.py ENDPOINT BUCKET...")
    made = make_buckets(sys.argv[1], sys.argv[2:])
    print(f"made: {', '.join(made) or 'nothing, all were there'}")
