"""Reads the examples under docker/ (argument 1) and holds them against what their readers demand. Prints the relay's command of each."""

import json
import pathlib
import sys

import yaml

docker = pathlib.Path(sys.argv[1])
commands = {}


def load(path):
    return list(yaml.safe_load_all((docker / path).read_text()))


def words(command):
    return command.split() if isinstance(command, str) else command


def ports(command):
    return command[command.index("--pair") + 1].split(",")


# compose: what the relay may do, the socket's place, and that its networks are there.
(compose,) = load("compose/compose.yaml")
relay = compose["services"]["relay"]
assert relay["cap_drop"] == ["ALL"] and relay["cap_add"] == ["NET_RAW"], relay
assert relay["read_only"] and relay["tmpfs"] == ["/run"], relay
assert relay["security_opt"] == ["no-new-privileges"], relay
assert relay["healthcheck"]["test"] == ["CMD", "/l2relay", "health"], relay
for service in compose["services"].values():
    assert set(service["networks"]) <= set(compose["networks"]), service
commands["compose"] = words(relay["command"])
assert ports(commands["compose"]) == [f"eth{at}" for at in range(len(relay["networks"]))]

# containerlab: every link ends at a node, and the relay's links at the ports it is told of.
(lab,) = load("containerlab/chain.clab.yml")
nodes = lab["topology"]["nodes"]
ends = [end.split(":") for link in lab["topology"]["links"] for end in link["endpoints"]]
assert {node for node, _ in ends} == set(nodes), ends
commands["containerlab"] = words(nodes["relay"]["cmd"])
assert ports(commands["containerlab"]) == [port for node, port in ends if node == "relay"]

# Kubernetes: networks are JSON of the CNI, the pod names them, and asks for the least rights.
documents = load("kubernetes/relay.yaml")
networks = [document for document in documents if document["kind"] == "NetworkAttachmentDefinition"]
for network in networks:
    cni = json.loads(network["spec"]["config"])
    assert cni["name"] == network["metadata"]["name"] and cni["type"] and cni["cniVersion"], cni
(pod,) = [document for document in documents if document["kind"] == "Pod"]
attached = pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"].split(",")
attached = dict(part.split("@") for part in attached)
assert set(attached) == {network["metadata"]["name"] for network in networks}, attached
(container,) = pod["spec"]["containers"]
commands["kubernetes"] = container["args"]
assert ports(container["args"]) == list(attached.values()), attached
rights = container["securityContext"]
assert rights["capabilities"] == {"drop": ["ALL"], "add": ["NET_RAW"]}, rights
assert rights["readOnlyRootFilesystem"] and rights["allowPrivilegeEscalation"] is False, rights
assert container["livenessProbe"]["exec"]["command"] == ["/l2relay", "health", "--live"], container
assert container["readinessProbe"]["exec"]["command"] == ["/l2relay", "health"], container
mounted = {mount["name"] for mount in container["volumeMounts"]}
assert mounted == {volume["name"] for volume in pod["spec"]["volumes"]}, mounted
# The static CPU manager gives a core of its own to whole CPUs that are requested as they are limited.
assert container["resources"]["requests"] == container["resources"]["limits"], container

print(json.dumps(commands))
