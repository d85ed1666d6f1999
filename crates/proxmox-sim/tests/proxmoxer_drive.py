"""Drives the simulator with proxmoxer, a client that is not ours: one machine from its clone to
its removal. Arguments: the facts of the simulator as JSON. Prints one line per step."""

import io
import json
import sys
import time
from urllib.parse import urlsplit

import requests
from proxmoxer import ProxmoxAPI

facts = json.loads(sys.argv[1])
url = urlsplit(facts["url"])
with open(facts["tokenFile"], encoding="utf-8") as file:
    identity, secret = file.read().strip().split("=", 1)
user, token = identity.split("!", 1)

# proxmoxer takes no certificate authority by itself; requests does, by this variable.
proxmox = ProxmoxAPI(
    url.hostname,
    port=url.port,
    user=user,
    token_name=token,
    token_value=secret,
    verify_ssl=facts["caFile"],
    timeout=30,
)
node = proxmox.nodes(facts["node"])
VMID = 101


def step(name, value):
    print(f"{name}: {value}", flush=True)


def done(upid):
    """Waits for a task and returns its exit status."""
    of = proxmox.nodes(upid.split(":")[1]).tasks(upid)
    for _ in range(600):
        status = of.status.get()
        if status["status"] == "stopped":
            return status["exitstatus"]
        time.sleep(0.05)
    raise SystemExit(f"{upid} does not end")


step("version", proxmox.version.get()["release"])
step("nextid", proxmox.cluster.nextid.get(vmid=VMID))
step(
    "clone",
    done(node.qemu(facts["template"]).clone.post(newid=VMID, name="by-proxmoxer", full=1, storage=facts["storage"])),
)

seed = io.BytesIO(b"\0" * 40960)
seed.name = "by-proxmoxer.iso"
step("upload", done(node.storage(facts["isoStorage"]).upload.post(content="iso", filename=seed)))
volid = f"{facts['isoStorage']}:iso/by-proxmoxer.iso"
listed = [volume["volid"] for volume in node.storage(facts["isoStorage"]).content.get(content="iso")]
step("content", listed)

machine = node.qemu(VMID)
machine.config.put(ide2=f"{volid},media=cdrom", cores=2, memory=1024, tags="a;b", description="one\ntwo")
config = machine.config.get()
step("config", [config["cores"], config["memory"], config["tags"], config["description"]])
step("start", done(machine.status.start.post()))
step("status", machine.status.current.get()["status"])

for _ in range(600):
    try:
        interfaces = machine.agent("network-get-interfaces").get()["result"]
        break
    except Exception as error:  # proxmoxer has one class for every status
        if "agent is not running" not in str(error):
            raise
        time.sleep(0.05)
else:
    raise SystemExit("the agent never answers")
mac = config["net0"].split("=", 1)[1].split(",", 1)[0].lower()
step("agent", any(interface.get("hardware-address", "").lower() == mac for interface in interfaces))

step("stop", done(machine.status.stop.post()))
step("delete", done(machine.delete(purge=1)))
step("volume", done(node.storage(facts["isoStorage"]).content(volid).delete()))
try:
    machine.config.get()
    step("gone", False)
except Exception as error:
    step("gone", "does not exist" in str(error))
step("left", [volume["volid"] for volume in node.storage(facts["isoStorage"]).content.get(content="iso")])
