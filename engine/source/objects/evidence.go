package objects

// What a commit proves beside its content: who signed it, and which commit it takes back.

import (
	"bytes"
	"maps"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"github.com/homestak/homestak-gitops/engine/model"
)

// signer is the SHA256 fingerprint of the SSH key whose signature of the commit holds; "" for none, for other kinds of
// signatures, and for those that do not hold.
func signer(c *object.Commit) string {
	sig, err := sshsig.Unarmor([]byte(c.PGPSignature))
	unsigned := &plumbing.MemoryObject{}
	if err != nil || c.EncodeWithoutSignature(unsigned) != nil {
		return ""
	}
	text, err := unsigned.Reader()
	if err != nil || sshsig.Verify(text, sig, sig.PublicKey, sig.HashAlgorithm, "git") != nil {
		return ""
	}
	return ssh.FingerprintSHA256(sig.PublicKey)
}

// maxMessage bounds what is kept of the text of a commit, in bytes.
const maxMessage = 4096

// revertLine is how git says what a commit takes back.
const revertLine = "This reverts commit "

// reverted is the commit that a text says to take back; "" for none.
func reverted(message string) string {
	_, rest, _ := strings.Cut(message, revertLine)
	if len(rest) < 40 || !plumbing.IsHash(rest[:40]) {
		return ""
	}
	return rest[:40]
}

// Describe converts a commit for callers, and says whether it takes back exactly what another one changed.
func (s *Store) Describe(c *object.Commit) model.Commit {
	m := describe(c)
	if m.Reverts == "" || len(c.ParentHashes) == 0 {
		return m
	}
	undone, err := s.Commit(plumbing.NewHash(m.Reverts))
	if err != nil || len(undone.ParentHashes) == 0 {
		return m // it is not here, so nothing is claimed
	}
	did, err := s.changes(undone.ParentHashes[0], undone.Hash)
	if err != nil {
		return m
	}
	does, err := s.changes(c.Hash, c.ParentHashes[0]) // backwards
	m.RevertsExactly = err == nil && len(did) > 0 && maps.Equal(did, does)
	return m
}

// version is a file in a commit; the zero one is none.
type version struct {
	id   plumbing.Hash
	mode filemode.FileMode
}

// changes lists the files that differ between two commits, before and after.
func (s *Store) changes(from, to plumbing.Hash) (map[string][2]version, error) {
	a, err := s.Commit(from)
	if err != nil {
		return nil, err
	}
	b, err := s.Commit(to)
	if err != nil {
		return nil, err
	}
	out := map[string][2]version{}
	return out, s.compare("", [2]plumbing.Hash{a.TreeHash, b.TreeHash}, out)
}

// compare adds the files of two folders that differ; the zero id is an empty folder.
func (s *Store) compare(at string, folders [2]plumbing.Hash, out map[string][2]version) error {
	if strings.Count(at, "/") > deepest {
		return ErrTooLong
	}
	entries := map[string][2]version{}
	for i, id := range folders {
		if id.IsZero() {
			continue
		}
		list, err := s.tree(id)
		if err != nil {
			return err
		}
		for _, e := range list {
			pair := entries[e.Name]
			pair[i] = version{e.Hash, e.Mode}
			entries[e.Name] = pair
		}
	}
	for name, pair := range entries {
		if pair[0] == pair[1] {
			continue
		}
		var below [2]plumbing.Hash
		for i := range pair {
			if pair[i].mode == filemode.Dir {
				below[i], pair[i] = pair[i].id, version{}
			}
		}
		if pair != [2]version{} {
			out[at+name] = pair
		}
		if below != [2]plumbing.Hash{} {
			if err := s.compare(at+name+"/", below, out); err != nil {
				return err
			}
		}
	}
	return nil
}

// clip cuts the text of a commit at a whole line.
func clip(message string) string {
	message = strings.TrimSpace(message)
	if len(message) <= maxMessage {
		return message
	}
	cut := []byte(message[:maxMessage])
	return string(cut[:max(bytes.LastIndexByte(cut, '\n'), 0)]) + "\n…"
}
