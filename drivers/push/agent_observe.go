package push

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/specserve/wire"
	"github.com/homestak/homestak-gitops/systemd"
)

// Paths of a child's agent.
const (
	programFile = "/usr/local/bin/homestak-gitops"
	newFile     = "/usr/local/bin/.homestak-gitops.new"     // the next program, as it was sent
	oldFile     = "/usr/local/bin/.homestak-gitops.old"     // the one before, until the next one has reported
	oldUnits    = "/usr/local/bin/.homestak-gitops.units"   // a folder of the units of the one before
	upgradeFile = "/usr/local/bin/.homestak-gitops.upgrade" // sum of the one that has to report; last to come, first to go
	refusedFile = "/usr/local/bin/.homestak-gitops.refused" // sum of one that did not report

	folder       = "/etc/homestak-gitops"
	settingsFile = folder + "/agent.hcl"
	tokenFile    = folder + "/parent.token"
	apiFile      = folder + "/api.token"
	keyFile      = folder + "/ssh_key"        // by which the agent enters its guests; beside it is its public half
	data         = "/var/lib/homestak-gitops" // what the agent may lose
	keptFile     = data + "/parent.json"      // of specserve/client
	earlierKey   = data + "/ssh_key"          // where earlier versions had the key

	user = "homestak-gitops"

	unitFile   = "/usr/local/lib/systemd/system/" + systemd.Service
	dropIn     = "/etc/systemd/system/" + systemd.Service + ".d/child.conf"
	dropInText = "# The agent of a child reads the files of the cluster, which belong to this group.\n[Service]\nSupplementaryGroups=www-data\n"

	// apiToken is the token of the agent for the API of its own host, and pveUser whose it is.
	apiToken = pveUser + "!" + tokenName
	pveUser  = "homestak@pve"
	// tokenName is not gitops, which docs/permissions.md has for people.
	tokenName = "agent"
	tokenCfg  = "/etc/pve/priv/token.cfg"
	userCfg   = "/etc/pve/user.cfg"
)

// machine is the way into a machine, as guest.Machine has it.
type machine interface {
	Run(ctx context.Context, c guest.Command) (guest.Output, error)
}

// heads of a script: only root can do anything here.
const heads = `[ "$(id -u)" = 0 ] || die "commands run as user $(id -u) and not as root: let the user of the connection use sudo without a password"
`

// known is a function of scripts: whether Proxmox VE has the token that the file has. The list of tokens is a file of root; where
// it is missing, a program has to be asked, which takes a second. No token is in an argument of a process.
const known = `known() {
  [ -s ` + apiFile + ` ] || return 1
  IFS= read -r _line <` + apiFile + ` || return 1
  [ "${_line%%=*}" = '` + apiToken + `' ] || return 1
  if [ -f ` + tokenCfg + ` ]; then
    while read -r _id _value; do
      if [ "$_id" = '` + apiToken + `' ]; then [ "$_value" = "${_line#*=}" ]; return; fi
    done <` + tokenCfg + `
    return 1
  fi
  has_token
}
has_token() { pveum user token list ` + pveUser + ` --output-format json 2>/dev/null | tr -d ' \n' | grep -q '"tokenid":"` + tokenName + `"'; }
`

// probe prints the state of the machine. It prints only the beginning of the agent's own file: secrets of the subtree follow.
func probe() string {
	var b strings.Builder
	b.WriteString(heads + known + `printf %s "$(uname -s) $(uname -m)" | row machine
date +%s | row now
sum ` + programFile + ` | row program
`)
	paths := []string{settingsFile}
	for _, f := range shipped() {
		paths = append(paths, f.Path)
	}
	b.WriteString(`for _f in ` + guest.QuoteWords(paths) + `; do
  if [ -f "$_f" ] && [ "$(stat -c '%a %U' "$_f")" = '644 root' ]; then row file "$_f" <"$_f"; fi
done
for _f in ` + tokenFile + ` ` + apiFile + ` ` + keyFile + `; do
  if [ -f "$_f" ] && [ "$(stat -c '%a %U' "$_f")" = '600 ` + user + `' ]; then printf yes | row shut "$_f"; fi
done
if [ -s ` + keyFile + ` ] && [ -s ` + keyFile + `.pub ]; then printf yes | row key; fi
if [ -f ` + userCfg + ` ]; then grep -E '^(role:|acl:|user:` + pveUser + `:)' ` + userCfg + ` | row access; fi
if [ -f ` + tokenFile + ` ]; then row token <` + tokenFile + `; fi
if [ -f ` + keptFile + ` ]; then
  head -n 1 ` + keptFile + ` | sed -n 's/^\({"version":1,"given":"[0-9a-f]*","pins":\[[^]]*\],"token":"[^"]*"\),.*$/\1}/p' | row kept
fi
if command -v pveum >/dev/null; then printf yes | row pve; if known; then printf yes | row api; fi; fi
if [ -d /run/systemd/system ]; then
  printf '%s %s %s' "$(systemctl is-enabled ` + systemd.Service + ` 2>/dev/null)" "$(systemctl is-active ` + systemd.Service + ` 2>/dev/null)" \
    "$(systemctl show -p SubState --value ` + systemd.Service + ` 2>/dev/null)" | row unit
fi
if grep -q '"aspect"' ` + guest.RecordFile + ` 2>/dev/null; then printf yes | row record; fi
if [ -f ` + upgradeFile + ` ]; then row upgrade <` + upgradeFile + `; fi
if [ -f ` + refusedFile + ` ]; then row refused "$(stat -c %Y ` + refusedFile + `)" <` + refusedFile + `; fi
`)
	return b.String()
}

// Observe reads what is on a machine, by one command that changes nothing.
func (w AgentWant) Observe(ctx context.Context, m machine) (*FoundAgent, error) {
	fragments := []guest.Fragment{{Name: "agent", Body: probe()}}
	boundary := "homestak-" + rand.Text()
	out, err := m.Run(ctx, guest.Probe(boundary, "", fragments))
	if err != nil {
		return nil, err
	}
	if err := ended(out); err != nil {
		return nil, err
	}
	answers, err := guest.ReadProbe(boundary, out.Out, fragments)
	if err != nil {
		return nil, err
	}
	if a := answers["agent"]; a.Code != 0 {
		return nil, fmt.Errorf("the probe ended with exit code %d: %s", a.Code, guest.Excerpt(out.Err))
	}
	rows, err := guest.AnswerRows(answers["agent"].Text)
	if err != nil {
		return nil, err
	}
	f := &FoundAgent{want: w, files: map[string]string{}, shut: map[string]bool{}, unit: missing}
	for _, r := range rows {
		f.read(r)
	}
	return f, nil
}

// read takes one row of the answer.
func (f *FoundAgent) read(r []string) {
	last := len(r) - 1
	text := strings.TrimSpace(r[last])
	switch {
	case r[0] == "machine":
		f.machine = text
	case r[0] == "now":
		f.now = seconds(text)
	case r[0] == "program":
		f.program = text
	case r[0] == "file" && last == 2:
		f.files[r[1]] = r[2]
	case r[0] == "shut" && last == 2:
		f.shut[r[1]] = true
	case r[0] == "token":
		f.token = text
	case r[0] == "key":
		f.key = true
	case r[0] == "access":
		f.access = strings.Split(text, "\n")
	case r[0] == "kept" && text != "":
		f.readKept(text)
	case r[0] == "pve":
		f.pve = true
	case r[0] == "api":
		f.api = true
	case r[0] == "unit":
		f.readUnit(r[last])
	case r[0] == "record":
		f.record = true
	case r[0] == "upgrade":
		f.upgrade = text
	case r[0] == "refused" && last == 2:
		f.refused, f.since = text, seconds(r[1])
	}
}

// readKept reads what the agent stored of its parent. If that cannot be read, the agent reports it, and the
// installed configuration counts.
func (f *FoundAgent) readKept(text string) {
	var kept struct {
		Given, Token string
		Pins         []string
	}
	if json.Unmarshal([]byte(text), &kept) != nil {
		return
	}
	if pins, err := wire.ParsePins(kept.Pins); err == nil {
		f.given, f.kept = kept.Given, wire.Parent{Pins: pins, Token: kept.Token}
	}
}

// readUnit reads whether the unit is enabled, and whether it runs. One that begins is not disturbed.
func (f *FoundAgent) readUnit(text string) {
	words := strings.Split(text, " ")
	if len(words) != 3 || words[0] == "" || words[0] == "not-found" {
		return
	}
	begins := words[1] == "activating" && words[2] != "auto-restart"
	f.runs = words[0] == "enabled" && (words[1] == "active" || words[1] == "reloading" || begins)
	f.unit = words[0] + ", " + words[1]
}

func seconds(text string) time.Time {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.Unix(n, 0)
}
