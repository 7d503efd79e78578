#!/bin/sh
# PostgreSQL's image runs this at the first start: a role and a database for each server, so that
# neither can read the other's data.
set -eu

for name in prefect mlflow; do
    case "$name" in
        prefect) password=$PREFECT_DB_PASSWORD ;;
        mlflow) password=$MLFLOW_DB_PASSWORD ;;
    esac
    # psql quotes the values: :'password' is always a literal.
    psql --set ON_ERROR_STOP=1 --username postgres --set password="$password" <<SQL
CREATE ROLE $name LOGIN PASSWORD :'password';
CREATE DATABASE $name OWNER $name;
REVOKE CONNECT ON DATABASE $name FROM PUBLIC;
SQL
done
