package push

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Known is the record of a machine that was entered before.
type Known struct {
	Keys []string   // the host keys that it may show; each as type and base64
	Port int        // where it was entered last; 0 if that is not known
	IP   netip.Addr // the same; not valid if that is not known
}

// hostKeys keeps the host keys of machines by name.
type hostKeys interface {
	// Of returns the record of a machine; empty before its first login.
	Of(name string) (Known, error)
	// Learn replaces what is known of a machine.
	Learn(name string, k Known) error
	// Forget removes it.
	Forget(name string) error
}

// KnownHosts is a file of host keys in the format of sshd(8), SSH_KNOWN_HOSTS FILE FORMAT, so that
// `ssh -o HostKeyAlias=NAME -o UserKnownHostsFile=FILE` logs in with it. The folder is made when a
// key is learned. Without a Path the keys are kept in memory.
type KnownHosts struct {
	Path string

	lines []string   // without a Path
	mu    sync.Mutex // one change of the file at a time: guests are entered side by side
}

// Of is as hostKeys wants it.
func (k *KnownHosts) Of(name string) (Known, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	lines, err := k.read()
	if err != nil {
		return Known{}, err
	}
	var out Known
	for _, text := range lines {
		fields := strings.Fields(text)
		if len(fields) < 3 || fields[0] != name {
			continue
		}
		out.Keys = append(out.Keys, fields[1]+" "+fields[2])
		for _, comment := range fields[3:] { // a person may have written another one
			_, _ = fmt.Sscanf(comment, portComment, &out.Port)
			if ip, ok := strings.CutPrefix(comment, addressComment); ok {
				out.IP, _ = netip.ParseAddr(ip)
			}
		}
	}
	return out, nil
}

// The comments of a line that say where the machine was entered.
const (
	portComment    = "port=%d"
	addressComment = "address="
)

// Learn is as hostKeys wants it.
func (k *KnownHosts) Learn(name string, known Known) error {
	return k.change(func(lines []string) []string {
		lines = without(lines, name)
		for _, key := range known.Keys {
			fields := strings.Fields(key)
			text := strings.Join(append([]string{name}, fields[:min(len(fields), 2)]...), " ")
			if known.Port != 0 {
				text += " " + fmt.Sprintf(portComment, known.Port)
			}
			if known.IP.IsValid() {
				text += " " + addressComment + known.IP.String()
			}
			lines = append(lines, text)
		}
		return lines
	})
}

func without(lines []string, name string) []string {
	return slices.DeleteFunc(lines, func(text string) bool { return strings.HasPrefix(text, name+" ") })
}

// Forget is as hostKeys wants it.
func (k *KnownHosts) Forget(name string) error {
	return k.change(func(lines []string) []string { return without(lines, name) })
}

func (k *KnownHosts) read() ([]string, error) {
	if k.Path == "" {
		return k.lines, nil
	}
	text, err := os.ReadFile(k.Path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the host keys of guests: %w", err)
	}
	var lines []string
	for s := range bytes.Lines(text) {
		lines = append(lines, strings.TrimRight(string(s), "\r\n"))
	}
	return lines, nil
}

func (k *KnownHosts) change(by func([]string) []string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	lines, err := k.read()
	if err != nil {
		return err
	}
	after := by(slices.Clone(lines))
	if slices.Equal(lines, after) {
		return nil
	}
	if k.Path == "" {
		k.lines = after
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(k.Path), 0o700); err != nil {
		return fmt.Errorf("keep the host keys of guests: %w", err)
	}
	if err := durable.Replace(k.Path, []byte(strings.Join(after, "\n")+"\n")); err != nil {
		return fmt.Errorf("keep the host keys of guests in %s: %w", k.Path, err)
	}
	return nil
}

// carryKeys gives the host keys of guests whose nodes were renamed to their present names, and leaves none for another
// guest that gets the former name.
func carryKeys(keys hostKeys, moved map[model.Address]model.Address, alias func(model.Address) string) error {
	for from, to := range moved {
		former, err := keys.Of(alias(from))
		if err != nil {
			return err
		}
		if len(former.Keys) == 0 {
			continue
		}
		known, err := keys.Of(alias(to))
		if err == nil && len(known.Keys) == 0 {
			err = keys.Learn(alias(to), former)
		}
		if err != nil {
			return err
		}
		if err := keys.Forget(alias(from)); err != nil {
			return err
		}
	}
	return nil
}
