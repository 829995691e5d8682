"""JetStream in a notebook: cells to be run one by one.

`python examples/spark/notebook.py` runs them all. It uses the server in NATS_URL,
which needs JetStream, or starts one.
"""

# %% A server, some orders, and Spark.
import contextlib
import os
import sys
import tempfile

import shop
from pyspark.sql import SparkSession

import jsclient
import jsclient.spark

ORDERS = int(os.environ.get("ORDERS", "20000"))

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
stack = contextlib.ExitStack()
url = os.environ.get("NATS_URL")
if not url:
    url = stack.enter_context(jsclient.server.run(jetstream=True)).url
folder = stack.enter_context(tempfile.TemporaryDirectory())
js = stack.enter_context(shop.open_shop(url, ORDERS))
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)

# %% A stream as a table: what it holds now.
messages = jsclient.spark.read(spark, "ORDERS", servers=url)
messages.printSchema()
messages.select("sequence", "subject", messages.data.cast("string")).show(3, False)

# %% Payloads as columns, and a first question.
orders = jsclient.spark.from_json(messages, shop.SCHEMA)
orders.groupBy("value.product").sum("value.amount").orderBy("product").show()

# %% Only some subjects, and only a part of them.
europe = jsclient.spark.read(spark, "ORDERS", subject="orders.eu", end=101, servers=url)
print("of the first hundred orders,", europe.count(), "came from Europe")

# %% The same as a stream: it goes on from where it was, also after a crash.
arriving = jsclient.spark.read_stream(spark, "ORDERS", servers=url)
large = (
    jsclient.spark.from_json(arriving, shop.SCHEMA)
    .where("value.cents > 10000")
    .selectExpr("replace(subject, 'orders', 'news') as subject", "data")
)
query = jsclient.spark.write_stream(
    large, "NEWS", checkpoint=f"{folder}/news", once=True, servers=url
)
query.awaitTermination()
print("NEWS has", js.stream("NEWS").info().state.messages, "large orders")
print("orders not read yet:", jsclient.spark.lag(query))

# %% SQL alone does it too.
spark.sql(f"""
    create or replace temporary view news
    using jetstream options (servers '{url}', stream 'NEWS')
""")
spark.sql("select subject, count(*) from news group by subject order by 1").show()

# %% The end.
spark.stop()
stack.close()
