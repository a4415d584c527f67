package service

import (
	"io/fs"
	"log/slog"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/site"
)

// Between two passes connections are kept: the driver of the host stays the same one, and
// reads the files of the commit at hand.
func TestAHostIsOpenedOnce(t *testing.T) {
	var files fs.FS
	made := 0
	s := &hosts{
		commits: site.Commits{Files: func(commit string) (fs.FS, error) {
			return fstest.MapFS{"commit": {Data: []byte(commit)}}, nil
		}},
		facts: control.NewFacts("father"), log: slog.New(slog.DiscardHandler),
		make: func(f fs.FS, _ engine.Desired, _ *model.Host) (engine.Driver, error) {
			made, files = made+1, f
			return nil, nil //nolint:nilnil // nothing is done with it
		},
	}
	open := func(h model.Host, commit string) {
		t.Helper()
		_, err := s.open(engine.Desired{Site: &model.Site{Name: "home"}, Commit: commit}, &h)
		require.NoError(t, err)
		got, err := fs.ReadFile(files, "commit")
		require.NoError(t, err)
		require.Equal(t, commit, string(got))
	}
	father := model.Host{Name: "father", API: "https://192.0.2.10:8006"}
	open(father, "a")
	moved := father
	moved.At = diag.Range{File: "site.hcl", Start: diag.Pos{Line: 9, Column: 1}}
	open(moved, "b")
	require.Equal(t, 1, made, "where a block is makes no difference")
	other := father
	other.API = "https://192.0.2.11:8006"
	open(other, "c")
	require.Equal(t, 2, made)
	other.APIToken = "root@pam!x=1"
	open(other, "d")
	require.Equal(t, 3, made)
}

// A new key of ownership is in force in the next pass, without a restart; and so is the first one, which the parent gives.
func TestS1ANewKeyOpensTheHostAgain(t *testing.T) {
	made := 0
	s := &hosts{
		commits: site.Commits{Files: func(string) (fs.FS, error) { return fstest.MapFS{}, nil }}, log: slog.New(slog.DiscardHandler),
		make: func(fs.FS, engine.Desired, *model.Host) (engine.Driver, error) {
			made++
			return nil, nil //nolint:nilnil // nothing is done with it
		},
	}
	secrets := func(name, value string) *model.Secrets {
		return &model.Secrets{Values: map[string]map[string]string{"auth": {name: value}}}
	}
	for i, d := range []engine.Desired{
		{AwaitsSecrets: true},
		{},
		{Site: &model.Site{Secrets: secrets(model.OwnershipKey, "")}},
		{Site: &model.Site{Secrets: secrets(model.OwnershipKey, "a")}},
		{Site: &model.Site{Secrets: secrets(model.OwnershipKeys+".father", "a")}},
	} {
		if d.Site == nil {
			d.Site = &model.Site{}
		}
		for range 2 {
			_, err := s.open(d, &model.Host{Name: "father"})
			require.NoError(t, err)
			require.Equal(t, i+1, made)
		}
	}
	_, err := s.open(engine.Desired{Site: &model.Site{Secrets: &model.Secrets{Values: map[string]map[string]string{"auth": {model.OwnershipKeys + ".father": "a", "site_token": "b"}}}}}, &model.Host{Name: "father"})
	require.NoError(t, err)
	require.Equal(t, 5, made, "other secrets make no difference")
}
