package source

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	gitssh "github.com/go-git/go-git/v5/plumbing/transport/ssh"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// config returns our keys and the trusted host keys, from the current files.
func (r *sshRemote) config() (*ssh.ClientConfig, error) {
	keys, err := r.keys()
	if err != nil {
		return nil, err
	}
	known, algorithms, err := r.hostKeys()
	if err != nil {
		return nil, err
	}
	return &ssh.ClientConfig{
		User:              r.user(),
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(keys...)},
		HostKeyCallback:   known,
		HostKeyAlgorithms: algorithms,
		ClientVersion:     "SSH-2.0-homestak",
		Timeout:           connectTime(r.o.Timeout),
	}, nil
}

func (r *sshRemote) user() string {
	if r.from.user != "" {
		return r.from.user
	}
	return r.o.Auth.Username
}

// keys reads the private keys for the login: the configured one, or those that ssh would use.
func (r *sshRemote) keys() ([]ssh.Signer, error) {
	files := []string{r.o.Auth.KeyFile}
	if r.o.Auth.KeyFile == "" {
		files = nil
		for _, name := range []string{"id_ed25519", "id_ecdsa", "id_rsa"} {
			if home, err := os.UserHomeDir(); err == nil {
				files = append(files, filepath.Join(home, ".ssh", name))
			}
		}
	}
	var out []ssh.Signer
	for _, file := range files {
		key, err := r.key(file)
		if r.o.Auth.KeyFile == "" && err != nil {
			continue // one of several candidates
		}
		if err != nil {
			return nil, err
		}
		out = append(out, key)
	}
	if len(out) == 0 {
		return nil, r.from.Fault(errLogin, "there is no private key that can be used without a passphrase", "name one in key_file; ssh-keygen -t ed25519 -N '' makes one", nil)
	}
	return out, nil
}

func (r *sshRemote) key(file string) (ssh.Signer, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, r.from.Fault(errLogin, err.Error(), "put the private key there, readable by this program", err)
	}
	key, err := ssh.ParsePrivateKey(text)
	if _, locked := errors.AsType[*ssh.PassphraseMissingError](err); locked {
		return nil, r.from.Fault(errLogin, file+" is protected by a passphrase, and there is no terminal to type it on", "use a separate key without one: ssh-keygen -t ed25519 -N ''", err)
	}
	if err != nil {
		// The library's error may quote its input, and a key is a secret.
		return nil, r.from.Fault(errLogin, file+" is not a private key that can be read", "name the file without .pub, as ssh-keygen made it", nil)
	}
	return key, nil
}

// hostKeys returns what decides whether a host is the one it says, and which kinds of
// keys it is known by: a host that has several must show one of those.
func (r *sshRemote) hostKeys() (ssh.HostKeyCallback, []string, error) {
	files, err := r.knownHosts()
	if err != nil {
		return nil, nil, err
	}
	known, err := gitssh.NewKnownHostsDb(files...)
	if err != nil {
		return nil, nil, r.from.Fault(errHostKey, err.Error(), "fix that line of the file", err)
	}
	check := known.HostKeyCallback()
	callback := func(host string, addr net.Addr, key ssh.PublicKey) error {
		return r.explainKey(check(host, addr, key), key)
	}
	return callback, known.HostKeyAlgorithms(net.JoinHostPort(r.from.host, r.from.port)), nil
}

// knownHosts lists the files of host keys that are there.
func (r *sshRemote) knownHosts() ([]string, error) {
	if file := r.o.Auth.KnownHostsFile; file != "" {
		f, err := os.Open(file)
		if err == nil {
			return []string{file}, f.Close()
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil, r.from.Fault(errHostKey, file+" does not exist", "make it: "+r.scan(), err)
		}
		return nil, r.from.Fault(errHostKey, err.Error(), "let this program's user read it", err)
	}
	out := []string{os.DevNull} // go-git would choose files of its own
	candidates := []string{"/etc/ssh/ssh_known_hosts"}
	if home, err := os.UserHomeDir(); err == nil {
		candidates = append(candidates, filepath.Join(home, ".ssh", "known_hosts"))
	}
	for _, file := range candidates {
		if _, err := os.Stat(file); err == nil {
			out = append(out, file)
		}
	}
	return out, nil
}

// scan is the line that accepts the host's keys.
func (r *sshRemote) scan() string {
	file := r.o.Auth.KnownHostsFile
	if file == "" {
		file = "/etc/ssh/ssh_known_hosts"
	}
	port := ""
	if r.from.port != "22" {
		port = "-p " + r.from.port + " "
	}
	return fmt.Sprintf("ssh-keyscan %s%s >> %s", port, r.from.host, file)
}

// explainKey says what to do about a host key that was not accepted.
func (r *sshRemote) explainKey(err error, key ssh.PublicKey) error {
	if err == nil {
		return nil
	}
	shown := ssh.FingerprintSHA256(key)
	var why *knownhosts.KeyError
	var revoked *knownhosts.RevokedError
	switch {
	case errors.As(err, &why) && len(why.Want) > 0:
		w := why.Want[0]
		return r.from.Fault(errHostKey, fmt.Sprintf("it has changed: the server shows %s, and line %d of %s has another key; the connection may be intercepted", shown, w.Line, w.Filename),
			fmt.Sprintf("if the server was reinstalled, remove that line, then run %s", r.scan()), err)
	case errors.As(err, &why):
		return r.from.Fault(errHostKey, "it is not known: the server shows "+shown,
			fmt.Sprintf("compare that with the server's own, then run %s", r.scan()), err)
	case errors.As(err, &revoked):
		return r.from.Fault(errHostKey, "it was revoked: "+shown, "do not use this server until you know why", err)
	}
	return r.from.Fault(errHostKey, err.Error(), "check the server's keys", err)
}
