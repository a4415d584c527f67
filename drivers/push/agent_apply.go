package push

import (
	"context"
	"fmt"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/specserve/wire"
	"github.com/homestak/homestak-gitops/systemd"
)

// settings is agent.hcl.
func (f *FoundAgent) settings(p wire.Parent) string {
	quoted := make([]string, len(p.Pins))
	for i, one := range wire.PinTexts(p.Pins) {
		quoted[i] = `"` + one + `"`
	}
	head, api := "# Written by the parent of this machine, which puts back what is changed here.", `
api {
  token_file = "api.token"
  ca_file    = "/etc/pve/pve-root-ca.pem"
}
`
	if f.want.Bare {
		head = "# Written by homestak-gitops join."
	}
	if f.bare() {
		api = ""
	}
	return head + `
identity = "` + p.Identity + `"

parent {
  url        = "` + p.Server + `"
  pins       = [` + strings.Join(quoted, ", ") + `]
  token_file = "parent.token"
}
` + api
}

// SendProgram puts a program beside the one that runs. It is the standard input of the command, and is used by Change if its checksum is
// right.
func SendProgram(ctx context.Context, m machine, sum string, program []byte) error {
	script := `set -eu
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
umask 077
mkdir -p -m 0755 /usr/local/bin
rm -f ` + newFile + `
cat >` + newFile + `
if [ "$(sha256sum <` + newFile + ` | cut -c1-64)" != ` + sum + ` ]; then
  rm -f ` + newFile + `
  echo 'the program did not arrive as it was sent: is the disk full?' >&2
  exit 1
fi
chmod 0755 ` + newFile + `
sync ` + newFile + `
`
	return runCommand(ctx, m, guest.Command{Args: []string{"sh", "-c", script}, Stdin: program})
}

// Change makes everything what it should be but the program, if that is not to be replaced, and stops the agent. Given is what it gets to
// know of its parent; nil if it knows that. With replace the program that was sent replaces the old one.
func (f *FoundAgent) Change(ctx context.Context, m machine, given *wire.Parent, replace bool) error {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("set -e\n%s%s%s%s", heads, guest.Lock, known, asAgent)
	line(`[ -d /run/systemd/system ] || die "systemd does not run on the machine"`)
	if replace {
		f.keep(&b)
	}
	f.rights(&b)
	files := shipped()
	line("folder /usr/local/lib/sysusers.d; folder /usr/local/lib/systemd/system; folder %s.d; folder %s", "/etc/systemd/system/"+systemd.Service, folder)
	put := func(files []systemd.File) {
		for _, file := range files {
			if f.changed() != "" {
				line("%s", guest.PutFile(file.Path, file.Content, "0644", "root", "root"))
			}
		}
	}
	put(files[:1])
	line(`getent passwd %s >/dev/null || systemd-sysusers %s || die "the user of the agent could not be created"`, user, systemd.Sysusers)
	line("if [ -f %[1]s ]; then\n%[2]ssystemctl stop %[3]s || :\nfi", unitFile, arm, systemd.Service)
	put(files[1:])
	if given != nil {
		line("%s", guest.PutFile(tokenFile, given.Token+"\n", "0600", user, user))
		line("%s", guest.PutFile(settingsFile, f.settings(*given), "0644", "root", "root"))
	}
	line("chown %[1]s:%[1]s %[2]s; chmod 0600 %[2]s", user, tokenFile)
	if !f.bare() {
		f.apiToken(&b)
	}
	f.sshKey(&b)
	switch {
	case replace:
		line("mv -fT %s %s; sync /usr/local/bin", newFile, programFile)
	case f.upgrade != "" && f.Outdated(): // it was cut off while the old one came back
		line("if [ -f %[1]s ]; then mv -fT %[1]s %[2]s; fi; drop %[3]s", oldFile, programFile, upgradeFile)
	}
	line("systemctl daemon-reload")
	return runCommand(ctx, m, guest.Script(b.String()))
}

// rights creates the user of the agent in Proxmox VE, with its roles. Privileges that others added to a role stay.
func (f *FoundAgent) rights(b *strings.Builder) {
	line := func(format string, args ...any) { fmt.Fprintf(b, format+"\n", args...) }
	if f.bare() {
		return
	}
	line(`command -v pveum >/dev/null || die "Proxmox VE is not installed on the machine (it has no pveum)"`)
	if f.api && !f.Outdated() && len(f.lacks()) == 0 {
		return
	}
	line(`role() { pveum role add "$1" --privs "$2" >/dev/null 2>&1 || pveum role modify "$1" --append 1 --privs "$2" >/dev/null || die "role $1 could not be created"; }`)
	line(`more() { pveum role modify "$1" --append 1 --privs "$2" >/dev/null 2>&1; }`)
	line(`pveum user list --output-format json | tr -d ' \n' | grep -q '"userid":"%[1]s"' || pveum user add %[1]s --comment 'agent of this machine' >/dev/null || die "user %[1]s could not be created"`, pveUser)
	for _, r := range f.want.Roles {
		name := string(r.Name)
		line("role %s %s", guest.Quote(name), guest.Quote(strings.Join(r.Privs, ",")))
		if len(r.Or) > 0 {
			for _, set := range r.Or {
				fmt.Fprintf(b, "more %s %s || ", guest.Quote(name), guest.Quote(strings.Join(set, ",")))
			}
			line(`die %s`, guest.Quote("role "+name+" could not be created"))
		}
		line(`pveum acl modify %s --users %s --roles %s >/dev/null || die %s`, guest.Quote(r.Path), pveUser, guest.Quote(name), guest.Quote("role "+name+" could not be granted"))
	}
}

// apiToken makes the token of the agent, if it has none that Proxmox VE knows. PVE shows its value once, and it goes into the file.
func (*FoundAgent) apiToken(b *strings.Builder) {
	fmt.Fprintf(b, `if ! known; then
  if has_token; then pveum user token remove %[1]s %[2]s >/dev/null || die "the old token of the agent could not be removed"; fi
  _value=$(pveum user token add %[1]s %[2]s --privsep 0 --output-format json | tr -d ' \n' | sed -n 's/.*"value":"\([^"]*\)".*/\1/p')
  [ -n "$_value" ] || die "Proxmox VE gave the agent no token: does pvedaemon run, and is pmxcfs writable?"
  printf '%%s\n' '%[3]s='"$_value" | put %[4]s 0600 %[5]s %[5]s
  _value=
fi
chown %[5]s:%[5]s %[4]s; chmod 0600 %[4]s
`, pveUser, tokenName, apiToken, apiFile, user)
}

// sshKey creates the agent's SSH key for its guests, if it is missing. It is beside agent.hcl and not in the data
// folder, so that the key survives the loss of that folder. Files in the data folder are read as the agent, who may
// put a link there.
func (f *FoundAgent) sshKey(b *strings.Builder) {
	fmt.Fprintf(b, `if [ ! -s %[1]s ]; then
  _new=%[1]s.new
  rm -f $_new $_new.pub
  if [ -f %[2]s ] && as_agent cat %[2]s | put $_new 0600 root root && [ -s $_new ]; then
    if [ -f %[2]s.pub ]; then as_agent cat %[2]s.pub | put $_new.pub 0644 root root; fi
  else
    rm -f $_new
    ssh-keygen -q -t ed25519 -N '' -C %[3]s -f $_new </dev/null >&2 || die "ssh-keygen made no key for the guests of the machine"
  fi
  put %[1]s 0600 %[4]s %[4]s <$_new
  if [ -s $_new.pub ]; then put %[1]s.pub 0644 root root <$_new.pub; fi
  drop $_new $_new.pub
fi
if [ ! -s %[1]s.pub ]; then
  _public=$(ssh-keygen -y -f %[1]s </dev/null) || die "%[1]s is not a private key that can be read: remove it, apply again, and put the new public key into authorized_keys of the guests of the machine"
  printf '%%s\n' "$_public" | put %[1]s.pub 0644 root root
fi
chown %[4]s:%[4]s %[1]s; chmod 0600 %[1]s
`, keyFile, earlierKey, guest.Quote("homestak-gitops agent of "+f.want.Identity), user)
}

// asAgent is a function of scripts: a command with the rights of the agent.
const asAgent = "as_agent() { setpriv --reuid " + user + " --regid " + user + " --clear-groups -- \"$@\"; }\n"

// keep keeps the program that is there, if it works, until the new one has reported.
func (f *FoundAgent) keep(b *strings.Builder) {
	line := func(format string, args ...any) { fmt.Fprintf(b, format+"\n", args...) }
	line(`[ "$(sum %s)" = %s ] || die "the program was not sent"`, newFile, f.want.Program.Sum)
	if !f.Upgrades() {
		return
	}
	if f.upgrade == "" { // else it is there, unless it came back
		line("rm -f %s", oldFile)
	}
	line("[ -f %[1]s ] || { cp -p %[2]s %[1]s; sync %[1]s; }", oldFile, programFile)
	if f.upgrade == "" {
		line("rm -rf %[1]s; mkdir -m 0700 %[1]s", oldUnits)
		for i, file := range shipped() { // 1 is the first line of the list, and missing if there was no such file
			line("printf '%%s\\n' %[2]s >>%[1]s/list; if [ -f %[2]s ]; then cp %[2]s %[1]s/%[3]d; fi", oldUnits, file.Path, i+1)
		}
	}
	line("printf '%%s\\n' %s | put %s 0644 root root", f.want.Program.Sum, upgradeFile)
}

// Between a stop of the agent and its start the connection may fail, and the parent may be unreachable for long. So
// systemd starts it after a while, unless that is cancelled. This is only a fallback: a step does not fail because
// of it.
const (
	resume = "homestak-gitops-resume"
	arm    = "systemctl stop " + resume + ".timer " + resume + ".service >/dev/null 2>&1 || :\n" +
		"systemctl reset-failed " + resume + ".service >/dev/null 2>&1 || :\n" +
		"systemd-run --quiet --collect --unit=" + resume + " --on-active=" + resumeAfter + " systemctl start --no-block " + systemd.Service + " >/dev/null 2>&1 || :\n"
	disarm = "systemctl stop " + resume + ".timer >/dev/null 2>&1 || :\n"
	// resumeAfter is more than what is done meanwhile takes.
	resumeAfter = "120"
)

// start makes the agent run, now and at every boot. It may run already, started by the fallback, and must then
// reload.
const start = "systemctl reset-failed " + systemd.Service + " 2>/dev/null || :\n" +
	"systemctl unmask " + systemd.Service + " >/dev/null 2>&1 || :\n" +
	"systemctl enable " + systemd.Service + " >/dev/null 2>&1 || die '" + systemd.Service + " cannot be enabled'\n" +
	"unit restart " + systemd.Service + "\n" + disarm

// StartAgent starts the agent.
func StartAgent(ctx context.Context, m machine) error {
	return runCommand(ctx, m, guest.Script("set -e\n"+guest.Lock+start))
}

// FinishAgent ends an upgrade: the new program has reported.
func FinishAgent(ctx context.Context, m machine) error {
	return runCommand(ctx, m, guest.Script("set -e\n"+guest.Lock+"drop "+oldFile+" "+refusedFile+" "+earlierKey+" "+earlierKey+".pub "+upgradeFile+"; rm -rf "+oldUnits+"\n"))
}

// Back puts the program from before an upgrade in place of the new one, and starts the agent.
func (f *FoundAgent) Back(ctx context.Context, m machine) error {
	return runCommand(ctx, m, guest.Script("set -e\n"+guest.Lock+
		"[ -f "+oldFile+" ] || die 'the program from before the upgrade is missing'\n"+
		"printf '%s\\n' "+f.want.Program.Sum+" | put "+refusedFile+" 0644 root root\n"+
		arm+"systemctl stop "+systemd.Service+" || :\n"+
		unitsBack+
		"mv -fT "+oldFile+" "+programFile+"; sync /usr/local/bin\nsystemctl daemon-reload\n"+
		start+"drop "+upgradeFile+"; rm -rf "+oldUnits+"\n"))
}

// unitsBack puts back the units of the program from before, which may not know those of the new one. That program takes back the
// data folder itself, see durable.ClaimFormat.
const unitsBack = `if [ -f ` + oldUnits + `/list ]; then
  _n=0
  while read -r _file; do
    _n=$((_n + 1))
    if [ -f ` + oldUnits + `/$_n ]; then put "$_file" 0644 root root <` + oldUnits + `/$_n; else drop "$_file"; fi
  done <` + oldUnits + `/list
fi
`

func runCommand(ctx context.Context, m machine, c guest.Command) error {
	out, err := m.Run(ctx, c)
	if err != nil {
		return err
	}
	return ended(out)
}
