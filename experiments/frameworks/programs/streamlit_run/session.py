# mypy: ignore-errors
"""Two runs of a page in one session: what a browser sends, and the texts of the page."""

import sys

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import connect

with connect(sys.argv[1], subprotocols=["streamlit"]) as connection:
    for _ in range(2):
        asked = BackMsg()
        asked.rerun_script.query_string = ""
        connection.send(asked.SerializeToString())
        told = ForwardMsg()
        while told.WhichOneof("type") != "script_finished":
            told.ParseFromString(connection.recv())
            element = told.delta.new_element
            if element.WhichOneof("type") == "text":
                print(element.text.body)
            elif element.WhichOneof("type") == "exception":
                print(element.exception.message)
        print("finished", told.script_finished)
