package push

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/local"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/wire"
	"github.com/homestak/homestak-gitops/systemd"
)

// joinKey is the key of a machine that joins: an answer that got lost is repeated for it alone.
const joinKey = folder + "/join.key"

// OwnMachine is the machine that this program runs on.
func OwnMachine() guest.Machine { return local.New() }

// machineKey returns the key of a machine, which becomes a new one if there is none yet.
func machineKey(ctx context.Context, m machine, fresh string) (string, error) {
	out, err := m.Run(ctx, guest.Command{Args: []string{"sh", "-c", `set -eu
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
umask 077
mkdir -p -m 0755 ` + folder + `
if [ ! -s ` + joinKey + ` ]; then
  cat >` + joinKey + `.new
  sync ` + joinKey + `.new
  mv -fT ` + joinKey + `.new ` + joinKey + `
fi
cat ` + joinKey + `
`}, Stdin: []byte(fresh + "\n")})
	if err == nil {
		err = ended(out)
	}
	return strings.TrimSpace(out.Out), err
}

// joinWant is the agent of a host that joins a parent.
func joinWant(p wire.Parent, program Program) AgentWant {
	return AgentWant{
		Identity: p.Identity, Server: p.Server, Pins: p.Pins, Program: program, Accepts: func(string) error { return nil }, Roles: kind.ChildRoles(), Bare: true,
	}
}

// joins installs the agent of a host that joins, and starts it. The program is sent, unless it is the one that is there.
func (f *FoundAgent) joins(ctx context.Context, m machine, p wire.Parent, program []byte) error {
	if f.Outdated() {
		if err := SendProgram(ctx, m, f.want.Program.Sum, program); err != nil {
			return err
		}
	}
	if err := f.Change(ctx, m, &p, f.Outdated()); err != nil {
		return fmt.Errorf("install the agent: %w", err)
	}
	if err := StartAgent(ctx, m); err != nil {
		return errors.Join(fmt.Errorf("start the agent: %w", err), errors.New("journalctl -u homestak-gitops shows why"))
	}
	return FinishAgent(ctx, m)
}

// Join lets a machine join a parent: the agent of the parent gives it a token, and it installs what a parent installs in a
// guest. It may be repeated.
type Join struct {
	wire.JoinFile
	Machine      machine
	System, Arch string                                                               // as Go names them
	Program      []byte                                                               // this program, for a parent that has another one or none
	Version      string                                                               // of it
	Upgrades     bool                                                                 // enable the timer of upgrades
	Say          func(format string, args ...any)                                     // reports each step, a line at a time
	Dial         func(ctx context.Context, network, address string) (net.Conn, error) // nil: the network
}

// parent checks the three values.
func (j *Join) parent() (wire.Parent, error) {
	p := wire.Parent{Identity: identityOf(j.Token), Server: strings.TrimRight(j.URL, "/"), Token: j.Token}
	if j.Token == "" {
		return p, errors.New("--token is missing: token mint NAME --join on the parent prints the command with it")
	}
	if p.Identity == "" {
		return p, errors.New("the token is not one that token mint NAME --join prints")
	}
	var err error
	if p.Pins, err = wire.ParsePins(strings.Split(j.Pin, ",")); err != nil {
		return p, err
	}
	return p, p.Check()
}

// identityOf is the name in a provisioning token, which is not verified; "" for what is none.
func identityOf(token string) string {
	payload, _, _ := strings.Cut(token, ".")
	text, err := base64.RawURLEncoding.DecodeString(payload)
	var claims struct {
		Node string `json:"n"`
	}
	if err != nil || json.Unmarshal(text, &claims) != nil || !wire.IsIdentity(claims.Node) {
		return ""
	}
	return claims.Node
}

// Do joins, or with look only says what it would do.
func (j *Join) Do(ctx context.Context, look bool) error {
	p, err := j.parent()
	if err != nil {
		return err
	}
	sum := sha256.Sum256(j.Program)
	own := Program{Sum: hex.EncodeToString(sum[:]), System: j.System + "-" + j.Arch, Version: j.Version}
	found, err := joinWant(p, own).Observe(ctx, j.Machine)
	if err == nil {
		err = found.Check()
	}
	if err != nil {
		return err
	}
	what := "Proxmox VE"
	if !found.pve {
		what = "no Proxmox VE"
	}
	j.Say("this machine: %s, %s", own.System, what)
	if was := found.connection().Identity; was != "" && was != p.Identity {
		return fmt.Errorf("the agent of this machine is %s, and the token is for %s: mint one for %[1]s, or remove /etc/homestak-gitops/agent.hcl first", was, p.Identity)
	}
	j.Say("join %s as %s: use up the token, and get one for the agent", p.Server, p.Identity)
	if look {
		j.Say("fetch the program of the parent, if it is not this one")
		j.installs(found)
		return nil
	}
	fresh := make([]byte, sha256.Size)
	_, _ = rand.Read(fresh) // it never fails (crypto/rand)
	key, err := machineKey(ctx, j.Machine, hex.EncodeToString(fresh))
	if err != nil {
		return fmt.Errorf("make the key of this machine: %w", err)
	}
	ask := &client.Client{Parent: p, Agent: "homestak-gitops/" + j.Version, Dial: j.Dial}
	got, known, err := ask.Join(ctx, key)
	if err != nil {
		return err
	}
	program, announced := j.Program, got.Agent[own.System]
	if announced != "" && announced != own.Sum {
		j.Say("fetch the program of the parent")
		ask.Parent = known
		if program, err = ask.Program(ctx, j.System, j.Arch, announced); err != nil {
			return err
		}
		own.Sum = announced
	}
	if found, err = joinWant(known, own).Observe(ctx, j.Machine); err != nil {
		return err
	}
	j.installs(found)
	if err := found.joins(ctx, j.Machine, known, program); err != nil {
		return err
	}
	if j.Upgrades {
		if err := runCommand(ctx, j.Machine, guest.Script("set -e\nsystemctl enable "+systemd.Upgrades+" >/dev/null 2>&1 || die '"+systemd.Upgrades+" cannot be enabled'\nunit restart "+systemd.Upgrades+"\n")); err != nil {
			return err
		}
	}
	if got.Waiting {
		j.Say("%s waits: no commit has a host of this name yet. Declare it: host %q { parent = … }", p.Identity, p.Identity)
		return nil
	}
	j.Say("%s joined; homestak-gitops status shows how it converges", p.Identity)
	return nil
}

// installs says what is installed.
func (j *Join) installs(found *FoundAgent) {
	j.Say("install the program, its units and user, agent.hcl, the token and an SSH key for guests")
	if found.pve {
		j.Say("create homestak@pve with its roles and a token for the API of this machine")
	}
	j.Say("start homestak-gitops.service, now and at every boot")
	if j.Upgrades {
		j.Say("start %s: who controls the parent is root on this machine from then on", systemd.Upgrades)
	}
}

// How often a machine asks at its first boot, and the pause between two.
const (
	joinAttempts = 20
	joinPause    = 15 * time.Second
)

// DoPatiently is Do for a first boot, where the network may come late: it asks again while the parent does not answer. A machine
// that joined this parent before, and was cut off after that, needs no token for joining any more.
func (j *Join) DoPatiently(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		err := j.Do(ctx, false)
		known, is := errors.AsType[*wire.Error](err)
		if is && (known.Code == wire.CodeRefused || known.Code == wire.CodeExpired) && j.joinedBefore(ctx) {
			j.Say("%s; this machine joined before, and its agent keeps the token that it got", known.Message)
			return StartAgent(ctx, j.Machine)
		}
		if !is || known.Code != wire.CodeConnection && known.Code != wire.CodeInternal && known.Code != wire.CodeTooMany || attempt == joinAttempts {
			return err
		}
		j.Say("%s; again in %s", known.Message, joinPause)
		if !wire.Sleep(ctx, joinPause, nil) {
			return err
		}
	}
}

// joinedBefore reports whether the machine has an agent of this identity below this parent, with a token.
func (j *Join) joinedBefore(ctx context.Context) bool {
	p, err := j.parent()
	if err != nil {
		return false
	}
	found, err := joinWant(p, Program{}).Observe(ctx, j.Machine)
	if err != nil {
		return false
	}
	has := found.connection()
	return found.program != "" && has.Identity == p.Identity && has.Server == p.Server && has.Token != ""
}
