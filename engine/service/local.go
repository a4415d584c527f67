package service

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/engine/model"
)

// keyFile is the private key by which the agent of a child enters its guests. It never leaves the machine; beside it is its
// public half, which the guests get. The parent makes it on the machine, beside agent.hcl, so that it outlives the data folder;
// who installs a child by hand may do so, too.
const keyFile = "ssh_key"

// openKey reads the key of the agent of a child. Without one it makes one in the data folder, at its first start: the folder of
// agent.hcl belongs to root.
func (s *Service) openKey() error {
	c := s.o.Config
	if c.Parent == nil || c.Parent.URL == "" || s.o.NewKey == nil {
		return nil
	}
	name := filepath.Join(c.DataDir, keyFile)
	if given := filepath.Join(filepath.Dir(c.File), keyFile); c.File != "" && exists(given) {
		name = given
	}
	private, err := durable.ReadPrivate(name)
	switch {
	case err == nil:
		public, err := os.ReadFile(name + ".pub")
		if err != nil {
			return fmt.Errorf("read the key for guests: %w\nits public half is missing: ssh-keygen -y -f %[2]s >%[2]s.pub", err, name)
		}
		s.private, s.public = string(private), strings.TrimSpace(string(public))
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("read the key for guests: %w", err)
	}
	s.private, s.public, err = s.o.NewKey("homestak-gitops agent of " + c.Identity)
	if err == nil {
		err = durable.Replace(name+".pub", []byte(s.public+"\n"))
	}
	if err == nil {
		err = durable.Replace(name, []byte(s.private))
	}
	if err != nil {
		return fmt.Errorf("make the key for guests: %w", err)
	}
	s.o.Log.Info("created the SSH key for guests", "public", s.public)
	return nil
}

// exists reports whether a file is there, also one that may not be read.
func exists(name string) bool {
	_, err := os.Stat(name)
	return !errors.Is(err, fs.ErrNotExist)
}

// local returns what agent.hcl and the data folder say of the host; see site.Commits. The files are read each time.
func (s *Service) local() (*model.LocalHost, diag.List) {
	c, api := s.o.Config, s.o.Config.API
	if api == nil { // a configuration that was not read from anywhere, as that of the demo
		api = &model.AgentAPI{}
	}
	l := &model.LocalHost{Identity: c.Identity, Fingerprint: api.Fingerprint, Key: s.private, PublicKey: s.public}
	var found diag.List
	read := func(path, name string, secret bool) []byte {
		if name == "" {
			return nil
		}
		var data []byte
		var err error
		if secret {
			data, err = durable.ReadPrivate(name)
		} else {
			data, err = os.ReadFile(name)
		}
		if err != nil {
			f := diag.Errorf(c.At(path), path+" cannot be read", "%v", err)
			f.Address = path
			found = append(found, f)
		}
		return data
	}
	l.APIToken = strings.TrimSpace(string(read("api.token_file", api.TokenFile, true)))
	l.CAPEM = read("api.ca_file", api.CAFile, false)
	return l, found
}
