# The first boot of a node in mode pull: gets the program from the parent of the node, and lets it
# apply the node's spec. systemd starts this again until it succeeds, and then it removes itself.
# It needs Python 3 alone, which cloud-init brings with it. Nothing it prints has the token in it.
import hashlib
import http.client
import json
import os
import platform
import signal
import ssl
import subprocess
import sys
import tempfile
import urllib.parse

NODE = "/etc/homestak-gitops/node.json"
PROGRAM = "/usr/local/bin/homestak-gitops"
UNIT = "homestak-gitops-firstboot.service"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
MOST_SPEC = 8 << 20
MOST_PROGRAM = 256 << 20
PATIENCE = 30  # seconds for each piece that is sent or received


def key_of(certificate):
    """Gives the public key (SPKI) of a certificate, both in DER (RFC 5280, 4.1)."""

    def content(at):
        length, start = certificate[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, start = int.from_bytes(certificate[start : start + size], "big"), start + size
        return start, start + length

    at, _ = content(0)  # Certificate
    at, _ = content(at)  # TBSCertificate
    if certificate[at] == 0xA0:  # version
        at = content(at)[1]
    for _ in range(5):  # serialNumber, signature, issuer, validity, subject
        at = content(at)[1]
    return certificate[at : content(at)[1]]


def get(node, path):
    """Asks the parent, once its key is known to be one of the pinned ones."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the key is verified below
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    server = urllib.parse.urlsplit(node["server"])
    connection = http.client.HTTPSConnection(server.hostname, server.port or 443, timeout=PATIENCE, context=context)
    connection.connect()
    pin = "sha256:" + hashlib.sha256(key_of(connection.sock.getpeercert(True))).hexdigest()
    if pin not in node["pins"]:
        sys.exit("the server has the key %s, and none of the pinned ones: nothing was sent to it" % pin)
    headers = {"Accept": "*/*", "User-Agent": "homestak-gitops-firstboot"}
    if node.get("token"):
        headers["Authorization"] = "Bearer " + node["token"]
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    if answer.status != 200:
        sys.exit("%s%s: the server answered %d" % (node["server"], path, answer.status))
    return answer


def checksum(name):
    total = hashlib.sha256()
    try:
        with open(name, "rb") as f:
            for piece in iter(lambda: f.read(1 << 20), b""):
                total.update(piece)
    except FileNotFoundError:
        return ""
    return total.hexdigest()


def install(node, system, want):
    """Downloads the program, and puts it into place if it is the one that the spec names."""
    folder = os.path.dirname(PROGRAM)
    os.makedirs(folder, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".homestak-gitops-", dir=folder)
    try:
        with os.fdopen(handle, "wb") as f:
            answer, size = get(node, "/agent/" + system), 0
            for piece in iter(lambda: answer.read(1 << 20), b""):
                size += len(piece)
                if size > MOST_PROGRAM:
                    sys.exit("the program is longer than %d bytes" % MOST_PROGRAM)
                f.write(piece)
            f.flush()
            os.fsync(f.fileno())
        if checksum(temporary) != want:
            sys.exit("the program that the server sent has another checksum than the spec names")
        os.chmod(temporary, 0o755)
        os.replace(temporary, PROGRAM)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def main():
    with open(NODE) as f:
        node = json.load(f)
    system = "linux-" + ARCHITECTURES.get(platform.machine(), platform.machine())
    body = get(node, "/spec/" + urllib.parse.quote(node["identity"], safe="")).read(MOST_SPEC + 1)
    if len(body) > MOST_SPEC:
        sys.exit("the spec is longer than %d bytes" % MOST_SPEC)
    want = json.loads(body).get("agent", {}).get(system)
    if not want:
        sys.exit("the server has no program for " + system)
    if checksum(PROGRAM) != want:
        install(node, system, want)
        print("installed %s (%s)" % (PROGRAM, want), flush=True)
    program = subprocess.Popen([PROGRAM, "config", "apply", "--fetch"])
    # A stop lets it finish the step that runs, such as an installation of packages.
    signal.signal(signal.SIGTERM, lambda *_: program.terminate())
    code = program.wait()
    if code != 0:
        sys.exit("the spec is not applied yet: %s ended with %d" % (PROGRAM, code))
    subprocess.run(["systemctl", "disable", UNIT], stderr=subprocess.DEVNULL)
    for name in ("/etc/systemd/system/" + UNIT, os.path.abspath(__file__)):
        os.unlink(name)
    subprocess.run(["systemctl", "daemon-reload"])


try:
    main()
except (OSError, ValueError, KeyError, http.client.HTTPException, ssl.SSLError) as e:
    sys.exit("%s: %s" % (type(e).__name__, e))
