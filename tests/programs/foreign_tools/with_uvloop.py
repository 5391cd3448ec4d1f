"""uvloop runs coroutines, a thread and a child."""

import asyncio

import program
import uvloop


async def work(name):
    await asyncio.sleep(0)
    return await asyncio.get_running_loop().run_in_executor(None, program.note, name)


async def main():
    print(await asyncio.gather(*map(work, "abc")), type(asyncio.get_running_loop()).__module__)
    child = await asyncio.create_subprocess_exec(
        __import__("sys").executable, "program.py", stdout=asyncio.subprocess.PIPE
    )
    print((await child.communicate())[0].decode())


uvloop.run(main())
