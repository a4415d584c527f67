package debian

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/crypto/ssh"

	"github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/sim/machine/userland"
)

// Settings are those of sshd_config(5) that make a difference here.
type Settings struct {
	Ports                  []int
	PermitRootLogin        string
	PasswordAuthentication bool
	PubkeyAuthentication   bool
	TCPForwarding          bool
	MaxSessions            int
	AllowUsers, DenyUsers  []string
	HostKeys               []ssh.Signer
}

// SSHD returns the settings that the running server uses; nil if it does not run.
func (m *Machine) SSHD() *Settings {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sshd
}

const hostKeyFile = "/etc/ssh/ssh_host_ed25519_key"

// makeHostKey makes the key by which the machine proves who it is, unless it has one.
func (m server) makeHostKey() {
	if _, err := m.K.FS.Stat(machine.Cred{}, hostKeyFile); err == nil {
		return
	}
	private, public := newKey("root@localhost")
	must(m.K.FS.WriteFile(hostKeyFile, private, 0o600, 0, 0))
	must(m.K.FS.WriteFile(hostKeyFile+".pub", public, 0o644, 0, 0))
}

// newKey makes a key pair as ssh-keygen writes it.
func newKey(comment string) (private, public string) {
	half, whole, err := ed25519.GenerateKey(rand.Reader)
	must(err)
	block, err := ssh.MarshalPrivateKey(whole, comment)
	must(err)
	key, err := ssh.NewPublicKey(half)
	must(err)
	return string(pem.EncodeToMemory(block)), publicLine(key, comment)
}

func publicLine(key ssh.PublicKey, comment string) string {
	return strings.TrimSpace(strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))+" "+comment) + "\n"
}

// keygen is ssh-keygen, for root: a new key without a passphrase, and with -y the public half of one, without its comment.
func (server) keygen(p *machine.Process, o userland.Options) int {
	if p.Cred.UID != 0 {
		return p.Failf("only root makes keys here")
	}
	name := p.Path(o.Text("f"))
	if o.Has("y") {
		text, err := p.ReadFile(name)
		if err != nil {
			fmt.Fprintf(p.Err(), "%s: %s\n", name, machine.ErrorText(err))
			return 255
		}
		key, err := ssh.ParsePrivateKey([]byte(text))
		if err != nil {
			fmt.Fprintf(p.Err(), "Load key \"%s\": error in libcrypto\n", name)
			return 255
		}
		p.Printf("%s", publicLine(key.PublicKey(), ""))
		return 0
	}
	if _, err := p.K.FS.Stat(p.Cred, name); err == nil {
		p.Printf("%s already exists.\nOverwrite (y/n)? ", name)
		return 1
	}
	private, public := newKey(o.Text("C"))
	err := p.K.FS.WriteFile(name, private, 0o600, p.Cred.UID, p.Cred.GID)
	if err == nil {
		err = p.K.FS.WriteFile(name+".pub", public, 0o644, p.Cred.UID, p.Cred.GID)
	}
	if err != nil {
		fmt.Fprintf(p.Err(), "Saving key \"%s\" failed: %s\n", name, machine.ErrorText(err))
		return 1
	}
	return 0
}

// sshdKeywords are those of sshd_config that are settings of this package or change nothing here.
const sshdKeywords = ` port permitrootlogin passwordauthentication pubkeyauthentication allowtcpforwarding maxsessions allowusers denyusers include match hostkey
	kbdinteractiveauthentication usepam x11forwarding printmotd subsystem acceptenv challengeresponseauthentication listenaddress addressfamily loglevel syslogfacility
	maxauthtries logingracetime strictmodes authorizedkeysfile clientaliveinterval clientalivecountmax permitemptypasswords usedns banner allowagentforwarding allowgroups
	denygroups gatewayports tcpkeepalive ciphers macs kexalgorithms hostkeyalgorithms pubkeyacceptedalgorithms authenticationmethods permituserenvironment compression pidfile maxstartups permittunnel chrootdirectory forcecommand printlastlog ignorerhosts hostbasedauthentication gssapiauthentication `

// sshdConfig reads the files of sshd. The first value of a keyword counts.
func (m server) sshdConfig() (*Settings, error) {
	values := map[string][]string{}
	if err := m.sshdFile("/etc/ssh/sshd_config", values); err != nil {
		return nil, err
	}
	one := func(key, otherwise string) string {
		if len(values[key]) > 0 {
			return values[key][0]
		}
		return otherwise
	}
	s := &Settings{
		PermitRootLogin: one("permitrootlogin", "prohibit-password"), PasswordAuthentication: one("passwordauthentication", "yes") == "yes",
		PubkeyAuthentication: one("pubkeyauthentication", "yes") == "yes", TCPForwarding: one("allowtcpforwarding", "yes") == "yes", MaxSessions: 10,
		AllowUsers: strings.Fields(strings.Join(values["allowusers"], " ")), DenyUsers: strings.Fields(strings.Join(values["denyusers"], " ")),
	}
	if n, err := strconv.Atoi(one("maxsessions", "10")); err == nil {
		s.MaxSessions = n
	}
	for _, text := range values["port"] {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 65535 {
			return nil, fmt.Errorf("Badly formatted port number.") //nolint:staticcheck,revive // as sshd says it
		}
		s.Ports = append(s.Ports, n)
	}
	if len(s.Ports) == 0 {
		s.Ports = []int{22}
	}
	text, err := m.K.FS.ReadFile(hostKeyFile)
	if err == nil {
		signer, err := ssh.ParsePrivateKey([]byte(text))
		if err == nil {
			s.HostKeys = append(s.HostKeys, signer)
		}
	}
	if len(s.HostKeys) == 0 {
		return s, fmt.Errorf("sshd: no hostkeys available -- exiting.") //nolint:staticcheck,revive // as sshd says it
	}
	return s, nil
}

func (m server) sshdFile(name string, values map[string][]string) error {
	text, err := m.K.FS.ReadFile(name)
	if err != nil {
		return fmt.Errorf("%s: %s", name, machine.ErrorText(err))
	}
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, value, _ := strings.Cut(strings.Replace(line, "=", " ", 1), " ")
		key, value = strings.ToLower(key), strings.Trim(strings.TrimSpace(value), `"`)
		switch {
		case !strings.Contains(sshdKeywords, " "+key+" ") && !strings.Contains(sshdKeywords, "\t"+key+" ") && !strings.Contains(sshdKeywords, " "+key+"\n"):
			return fmt.Errorf("%s: line %d: Bad configuration option: %s\n%[1]s: terminating, 1 bad configuration options", name, n, key)
		case value == "":
			return fmt.Errorf("%s line %d: no argument after keyword \"%s\"", name, n, key)
		case key == "match":
			return nil // what is for some connections only is not simulated
		case key == "include":
			list, _ := m.K.FS.ReadDir(machine.Cred{}, path.Dir(value))
			for _, f := range list {
				if ok, _ := path.Match(path.Base(value), f.Name); ok {
					if err := m.sshdFile(path.Dir(value)+"/"+f.Name, values); err != nil {
						return err
					}
				}
			}
		case key == "permitrootlogin" && !slices.Contains([]string{"yes", "no", "prohibit-password", "without-password", "forced-commands-only"}, value),
			key == "passwordauthentication" && value != "yes" && value != "no":
			return fmt.Errorf("%s line %d: unsupported option \"%s\".", name, n, value) //nolint:staticcheck,revive // as sshd says it
		default:
			values[key] = append(values[key], value)
		}
	}
	return nil
}

// sshdProgram is sshd -t, sshd -T, and the server, which Server answers for.
func (m server) sshdProgram(p *machine.Process) int {
	s, err := m.sshdConfig()
	if err != nil {
		fmt.Fprintf(p.Err(), "%v\n", err)
		return 255
	}
	yes := map[bool]string{true: "yes", false: "no"}
	switch {
	case slices.Contains(p.Args, "-t"):
		return 0
	case slices.Contains(p.Args, "-T"):
		if _, err := m.K.FS.Stat(machine.Cred{}, "/run/sshd"); err != nil {
			fmt.Fprintf(p.Err(), "Missing privilege separation directory: /run/sshd\n")
			return 255
		}
		for _, port := range s.Ports {
			p.Printf("port %d\n", port)
		}
		root := s.PermitRootLogin
		if root == "prohibit-password" {
			root = "without-password"
		}
		p.Printf("addressfamily any\npermitrootlogin %s\npubkeyauthentication %s\npasswordauthentication %s\nallowtcpforwarding %s\nmaxsessions %d\nusepam yes\n", root, yes[s.PubkeyAuthentication], yes[s.PasswordAuthentication], yes[s.TCPForwarding], s.MaxSessions)
		p.Printf("hostkey %s\nauthorizedkeysfile .ssh/authorized_keys .ssh/authorized_keys2\n", hostKeyFile)
		for _, name := range s.AllowUsers {
			p.Printf("allowusers %s\n", name)
		}
		for _, name := range s.DenyUsers {
			p.Printf("denyusers %s\n", name)
		}
		return 0
	}
	if p.Cred.UID != 0 {
		return p.Failf("the server has to run as root")
	}
	must(m.K.FS.MkdirAll("/run/sshd", 0o755))
	m.listen(s)
	p.Ready()
	hangup := make(chan struct{}, 1)
	p.Handle(syscall.SIGHUP, func() {
		select {
		case hangup <- struct{}{}:
		default:
		}
	})
	for {
		select {
		case <-hangup:
			again, err := m.sshdConfig()
			if err != nil {
				m.listen(nil)
				return 255
			}
			m.listen(again)
		case <-p.Killed():
			m.listen(nil)
			return 0
		}
	}
}

func (m server) listen(s *Settings) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.sshd = s
	}
}

// sockets is ss -tln: where sshd listens.
func (m server) sockets(p *machine.Process) int {
	p.Printf("State  Recv-Q Send-Q Local Address:Port Peer Address:Port\n")
	if s := m.SSHD(); s != nil {
		for _, port := range s.Ports {
			p.Printf("LISTEN 0      128    0.0.0.0:%d 0.0.0.0:*\n", port)
		}
	}
	return 0
}

// Admits reports whether a user may log in by a key. why says what is wrong, as the log of sshd does. The
// key trusted, which may be nil, logs in where any key of the user does, and on a machine that was born
// without keys.
func (m *Machine) Admits(s *Settings, name string, key, trusted ssh.PublicKey) (u User, why string) {
	u, there := m.User(name)
	switch {
	case !there:
		return u, "Invalid user " + name
	case !s.PubkeyAuthentication:
		return u, "keys do not log in"
	case u.Cred.UID == 0 && s.PermitRootLogin == "no":
		return u, "ROOT LOGIN REFUSED"
	case u.Expired:
		return u, "account of " + name + " has expired"
	case slices.Contains(s.DenyUsers, name), len(s.AllowUsers) > 0 && !slices.Contains(s.AllowUsers, name):
		return u, "User " + name + " not allowed because not listed in AllowUsers"
	}
	master := trusted != nil && string(trusted.Marshal()) == string(key.Marshal())
	if _, err := m.K.FS.Stat(machine.Cred{}, keylessFile); err == nil && master {
		return u, ""
	}
	file := u.Home + "/.ssh/authorized_keys"
	for _, f := range []string{u.Home, u.Home + "/.ssh", file} { // StrictModes
		i, err := m.K.FS.Stat(machine.Cred{}, f)
		if err != nil || i.UID != u.Cred.UID && i.UID != 0 || i.Perm&0o022 != 0 {
			return u, "Authentication refused: bad ownership or modes for " + f
		}
	}
	text, err := m.K.FS.ReadFile(file)
	if err != nil {
		return u, machine.ErrorText(err)
	}
	rest := []byte(text)
	for len(rest) > 0 {
		known, _, _, next, err := ssh.ParseAuthorizedKey(rest)
		if err != nil {
			break
		}
		if master || string(known.Marshal()) == string(key.Marshal()) {
			return u, ""
		}
		rest = next
	}
	return u, "no such key in " + file
}
