package objects

import (
	"crypto/ed25519"
	"crypto/sha512"
	"encoding/pem"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/hiddeco/sshsig"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
)

// sshSigner signs commits as ssh-keygen -Y sign does.
type sshSigner struct {
	ssh.Signer
	namespace string
}

func (s sshSigner) Sign(message io.Reader) ([]byte, error) {
	text, err := io.ReadAll(message)
	if err != nil {
		return nil, err
	}
	sum := sha512.Sum512(text)
	signed := ssh.Marshal(struct{ Namespace, Reserved, Hash, Message string }{s.namespace, "", "sha512", string(sum[:])})
	sig, err := s.Signer.Sign(nil, append([]byte("SSHSIG"), signed...))
	if err != nil {
		return nil, err
	}
	blob := ssh.Marshal(struct { // see PROTOCOL.sshsig of OpenSSH
		Version                                   uint32
		Key, Namespace, Reserved, Hash, Signature string
	}{1, string(s.PublicKey().Marshal()), s.namespace, "", "sha512", string(ssh.Marshal(sig))})
	return pem.EncodeToMemory(&pem.Block{Type: sshsig.PEMType, Bytes: append([]byte("SSHSIG"), blob...)}), nil
}

// history is a repository with a checkout.
type history struct {
	t     *testing.T
	dir   string
	repo  *git.Repository
	store *Store
}

func begin(t *testing.T) *history {
	t.Helper()
	dir := t.TempDir()
	repo, err := git.PlainInit(dir, false)
	require.NoError(t, err)
	return &history{t, dir, repo, &Store{Objects: repo.Storer}}
}

// commit writes files, or removes those without a text, and commits them.
func (h *history) commit(message string, signer git.Signer, files map[string]string) *object.Commit {
	h.t.Helper()
	w, err := h.repo.Worktree()
	require.NoError(h.t, err)
	for name, text := range files {
		if text == "" {
			_, err = w.Remove(name)
		} else {
			file := filepath.Join(h.dir, name)
			require.NoError(h.t, os.MkdirAll(filepath.Dir(file), 0o755))
			require.NoError(h.t, os.WriteFile(file, []byte(text), 0o644))
			_, err = w.Add(name)
		}
		require.NoError(h.t, err)
	}
	id, err := w.Commit(message, &git.CommitOptions{Author: &object.Signature{Name: "Ann", Email: "ann@example.org", When: time.Unix(1e9, 0)}, Signer: signer, AllowEmptyCommits: true})
	require.NoError(h.t, err)
	c, err := h.store.Commit(id)
	require.NoError(h.t, err)
	return c
}

func TestSignerOfACommit(t *testing.T) {
	_, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	key, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	h := begin(t)
	const first, last = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"
	c := h.commit("Signed\n\nBecause.\n", sshSigner{key, "git"}, map[string]string{"a": "1"})
	m := h.store.Describe(c)
	require.Equal(t, ssh.FingerprintSHA256(key.PublicKey()), m.Signer)
	require.Equal(t, "Signed\n\nBecause.", m.Message)

	require.Empty(t, signer(h.commit("For something else", sshSigner{key, "file"}, nil)))
	require.Empty(t, signer(h.commit("Not signed", nil, nil)))
	for name, spoil := range map[string]func(*object.Commit){
		"another text":   func(c *object.Commit) { c.Message = "Another\n" },
		"another author": func(c *object.Commit) { c.Author.Name = "Bob" },
		"another parent": func(c *object.Commit) { c.ParentHashes = []plumbing.Hash{c.Hash} },
		"no base64":      func(c *object.Commit) { c.PGPSignature = first + "\n!\n" + last },
		"nothing in it":  func(c *object.Commit) { c.PGPSignature = first + "\n" + last },
		"cut off":        func(c *object.Commit) { c.PGPSignature = strings.TrimSuffix(c.PGPSignature, last+"\n") },
		"of another kind": func(c *object.Commit) {
			c.PGPSignature = "-----BEGIN PGP SIGNATURE-----\n\nabc\n-----END PGP SIGNATURE-----"
		},
	} {
		c, err := h.store.Commit(c.Hash)
		require.NoError(t, err)
		spoil(c)
		require.Empty(t, signer(c), name)
	}
}

func TestReverts(t *testing.T) {
	h := begin(t)
	h.commit("First", nil, map[string]string{"a": "1", "d/b": "1"})
	second := h.commit("Second", nil, map[string]string{"a": "2", "d/b": "", "d/c": "1"})
	revert := "Revert \"Second\"\n\nThis reverts commit " + second.Hash.String() + ".\n"
	describe := func(c *object.Commit) (string, bool) {
		m := h.store.Describe(c)
		return m.Reverts, m.RevertsExactly
	}
	h.commit("Another file", nil, map[string]string{"e": "1"})
	of, exactly := describe(h.commit(revert, nil, map[string]string{"a": "1", "d/b": "1", "d/c": ""}))
	require.Equal(t, second.Hash.String(), of)
	require.True(t, exactly)

	h.commit("Again", nil, map[string]string{"a": "2", "d/b": "", "d/c": "1"})
	of, exactly = describe(h.commit(revert, nil, map[string]string{"a": "1", "d/b": "1", "d/c": "", "e": "2"}))
	require.Equal(t, second.Hash.String(), of)
	require.False(t, exactly, "it changes something else as well")

	of, exactly = describe(h.commit("This reverts commit 0123456789012345678901234567890123456789.", nil, nil))
	require.Equal(t, "0123456789012345678901234567890123456789", of)
	require.False(t, exactly, "that one is not here")
	of, _ = describe(h.commit("This reverts commit abc.", nil, nil))
	require.Empty(t, of)
	require.Empty(t, reverted("nothing"))
	require.Less(t, len(clip(strings.Repeat("long line\n", 1000))), maxMessage+10)
}
