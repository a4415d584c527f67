package node

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Server is the source of a spec.
type Server struct {
	Client *client.Client
	// File stores renewed pins and tokens (wire.ParentFile); "" for none.
	File string
}

// fetched is fetched.json: which answer of the parent spec.json is. It has no secret.
type fetched struct {
	Version int       `json:"version"`
	Server  string    `json:"server"`
	ETag    string    `json:"etag"`
	Spec    string    `json:"spec_sha256"` // of spec.json: the tag belongs to this content
	At      time.Time `json:"at"`          // when another spec than before was fetched last
}

// Fetch fetches the spec of the node and stores it, and reports whether it is another one than
// before. A failure is not recorded, and leaves everything as it is.
func (f Folder) Fetch(ctx context.Context, s Server) (changed bool, err error) {
	got, err := s.Client.Spec(ctx, f.tag(s.Client.Parent.Server))
	if err != nil || got.NotModified {
		return false, err
	}
	// Pins and token first: once the tag is stored, the parent does not send them again.
	if err := s.renew(got); err != nil {
		return false, err
	}
	document := got.Spec
	if s.File != "" {
		document = f.keepRun(document)
	}
	if changed, err = f.Store(document); err != nil {
		return false, fmt.Errorf("storing the spec of %s: %w", s.Client.Parent.Identity, err)
	}
	sum := sha256.Sum256(document)
	doc := fetched{Version: 1, Server: s.Client.Parent.Server, ETag: got.ETag, Spec: hex.EncodeToString(sum[:]), At: time.Now().UTC()}
	return changed, f.writeJSON(fetchedFile, doc)
}

// keepRun returns a spec with the run of the stored one, if its node is pushed now. It follows its parent as before until a push
// takes over: one that removed its units itself would be left alone if it could not be entered. A node that applied its spec, and
// has none now, withdraws all itself.
func (f Folder) keepRun(document []byte) []byte {
	var before, now map[string]json.RawMessage
	stored, err := os.ReadFile(f.file(specFile))
	if err != nil || json.Unmarshal(stored, &before) != nil || json.Unmarshal(document, &now) != nil {
		return document
	}
	set := func(of map[string]json.RawMessage, name string) bool {
		text := string(of[name])
		return text != "" && text != "null" && text != `""`
	}
	pushed := func(of map[string]json.RawMessage) bool {
		var run spec.Run
		return set(of, "run") && json.Unmarshal(of["run"], &run) == nil && run.Pushed
	}
	taken := set(now, "run") && (!pushed(now) || pushed(before))
	if !set(before, "run") || taken || !set(now, "spec") && !pushed(before) {
		return document
	}
	now["run"] = before["run"]
	kept, err := json.Marshal(now)
	if err != nil {
		return document
	}
	return kept
}

// tag is the tag of the stored spec, if it is as this parent sent it.
func (f Folder) tag(server string) string {
	of, err := readJSON[fetched](f.file(fetchedFile))
	if err != nil || of == nil || of.Server != server {
		return ""
	}
	document, err := os.ReadFile(f.file(specFile))
	if sum := sha256.Sum256(document); err != nil || hex.EncodeToString(sum[:]) != of.Spec {
		return ""
	}
	return of.ETag
}

// renew keeps the pins and the token of an answer.
func (s Server) renew(got client.Fetched) error {
	before := s.Client.Parent
	now := wire.Parent{Identity: before.Identity, Server: before.Server, Pins: got.Pins, Token: got.Token}
	now.Token = cmp.Or(now.Token, before.Token)
	if s.File == "" || slices.Equal(now.Pins, before.Pins) && now.Token == before.Token {
		return nil
	}
	if err := now.Save(s.File); err != nil {
		return fmt.Errorf("keeping the new pins and token: %w", err)
	}
	return nil
}
