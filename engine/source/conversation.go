package source

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
)

// Auth names files instead of secrets. They are read at every use, so a replaced file needs no
// restart.
type Auth struct {
	TokenFile string // https: a token or password, on the first line
	Username  string // https: the user for the token; "git" if empty

	KeyFile        string // ssh: the private key; those of ~/.ssh if empty
	KnownHostsFile string // ssh: the host keys; ~/.ssh/known_hosts and /etc/ssh/ssh_known_hosts if empty

	CAFile string // https: certificates trusted beside the system's
}

// Secrets are credentials as texts; "": none.
type Secrets struct{ Key, HostKey, Token string }

// Write writes the secrets into files of a folder, and names these in auth.
func (s Secrets) Write(dir string, auth *Auth) error {
	for _, f := range []struct {
		name, text string
		path       *string
	}{{"key", s.Key, &auth.KeyFile}, {"known_hosts", s.HostKey, &auth.KnownHostsFile}, {"token", s.Token, &auth.TokenFile}} {
		if f.text == "" {
			continue
		}
		*f.path = filepath.Join(dir, f.name)
		if err := os.WriteFile(*f.path, []byte(strings.TrimRight(f.text, "\n")+"\n"), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// remoteOptions are the options of a remote.
type remoteOptions struct {
	Auth      Auth
	Transport http.RoundTripper // of https; nil: the network, as Auth says
	Timeout   time.Duration     // of one check, see Options
	MaxPack   int64             // bytes of one download
	// Has reports whether an object is already local. A remote in a folder does not send those.
	Has func(id plumbing.Hash) bool
}

// newRemote returns the remote at an address.
func newRemote(from address, o remoteOptions) remote {
	switch from.by {
	case byHTTP:
		return &httpRemote{o: o, from: from}
	case bySSH:
		return &sshRemote{o: o, from: from}
	default:
		return &fileRemote{from: from, here: o.Has}
	}
}

// remote is a remote repository. Its errors are *fetchError, or ctx's.
type remote interface {
	// Ask lists the branches.
	Ask(ctx context.Context) (conversation, *packp.AdvRefs, error)
}

// conversation is a conversation with a remote, after it listed its branches.
type conversation interface {
	// Pack writes one complete pack with the requested objects. Call it at most once.
	Pack(ctx context.Context, req *packp.UploadPackRequest, w io.Writer) error
	Close()
}

// need is the request of a fetch.
type need struct {
	Want  plumbing.Hash
	Haves []plumbing.Hash // commits that are here, with all that belongs to them and their past, down to ends
	Ends  []plumbing.Hash // commits of which the parents are not here
	Depth int             // so many generations; 0: all that haves do not have
}

// request makes the message that asks for a pack. Thin packs are not asked for, so
// what comes is complete in itself.
func request(refs *packp.AdvRefs, n need) (*packp.UploadPackRequest, error) {
	req := packp.NewUploadPackRequest()
	can := refs.Capabilities
	if can.Supports(capability.Sideband64k) {
		_ = req.Capabilities.Set(capability.Sideband64k)
	} else if can.Supports(capability.Sideband) {
		_ = req.Capabilities.Set(capability.Sideband)
	}
	for _, c := range []capability.Capability{capability.OFSDelta, capability.NoProgress} {
		if can.Supports(c) {
			_ = req.Capabilities.Set(c)
		}
	}
	if can.Supports(capability.Agent) {
		_ = req.Capabilities.Set(capability.Agent, "homestak-gitops")
	}
	req.Wants = []plumbing.Hash{n.Want}
	req.Haves = slices.Clone(n.Haves)
	if can.Supports(capability.Shallow) { // where not, all of the history comes
		_ = req.Capabilities.Set(capability.Shallow)
		req.Shallows, req.Depth = n.Ends, packp.DepthCommits(n.Depth)
	}
	return req, req.Validate()
}

// copyPack writes the pack that an answer holds.
func copyPack(w io.Writer, res io.Reader, req *packp.UploadPackRequest) error {
	switch {
	case req.Capabilities.Supports(capability.Sideband64k):
		res = sideband.NewDemuxer(sideband.Sideband64k, res)
	case req.Capabilities.Supports(capability.Sideband):
		res = sideband.NewDemuxer(sideband.Sideband, res)
	}
	// The copy is in pieces of a packet: the demuxer fills the buffer that it gets, and so
	// would keep the last bytes of a connection that has become silent.
	_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{res}, make([]byte, 32<<10))
	return err
}
