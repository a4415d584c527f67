package source

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// mostRefs bounds the answer that lists the branches, in bytes.
const mostRefs = 64 << 20

// advert is what a git server says first: its branches and abilities.
type advert struct {
	refs *packp.AdvRefs
	from address
}

func readAdvert(r io.Reader, from address) (advert, error) {
	a := advert{packp.NewAdvRefs(), from}
	err := a.refs.Decode(io.LimitReader(r, mostRefs))
	if errors.Is(err, packp.ErrEmptyAdvRefs) || err == nil && a.refs.IsEmpty() {
		return a, noCommit(from)
	}
	return a, err
}

func noCommit(from address) error {
	return &RemoteError{Kind: ErrEmpty, Where: from.String(), Advice: "push a first commit with a site", temporary: true}
}

// tip is the commit of a branch.
func (a advert) tip(branch string) (plumbing.Hash, error) {
	const prefix = "refs/heads/"
	if id, ok := a.refs.References[prefix+branch]; ok {
		return id, nil
	}
	var names []string
	for name := range a.refs.References {
		if short, ok := strings.CutPrefix(name, prefix); ok {
			names = append(names, short)
		}
	}
	if len(names) == 0 {
		return plumbing.ZeroHash, noCommit(a.from)
	}
	return plumbing.ZeroHash, noBranch(a.from, branch, names)
}

func noBranch(from address, branch string, names []string) error {
	return &RemoteError{Kind: ErrNoBranch, Where: from.String(), Detail: fmt.Sprintf("%q", branch), Advice: diag.DidYouMean(branch, names)}
}

// request makes the message that asks for a pack. Thin packs are not asked for, so
// what comes is complete in itself.
func (a advert) request(n need) (*packp.UploadPackRequest, error) {
	req := packp.NewUploadPackRequest()
	can := a.refs.Capabilities
	for _, c := range []capability.Capability{capability.OFSDelta, capability.NoProgress} {
		if can.Supports(c) {
			_ = req.Capabilities.Set(c)
		}
	}
	switch {
	case can.Supports(capability.Sideband64k):
		_ = req.Capabilities.Set(capability.Sideband64k)
	case can.Supports(capability.Sideband):
		_ = req.Capabilities.Set(capability.Sideband)
	}
	if can.Supports(capability.Agent) {
		_ = req.Capabilities.Set(capability.Agent, "homestak-gitops")
	}
	req.Wants = []plumbing.Hash{n.want}
	req.Haves = n.haves
	if can.Supports(capability.Shallow) { // where not, all of the history comes
		_ = req.Capabilities.Set(capability.Shallow)
		req.Shallows, req.Depth = n.ends, packp.DepthCommits(n.depth)
	}
	return req, req.Validate()
}

// encode gives the bytes of a request: what is wanted, what is here, and that this
// is all. So the server answers once, and nobody waits for anybody.
func encode(req *packp.UploadPackRequest) ([]byte, error) {
	var b bytes.Buffer
	if err := req.UploadRequest.Encode(&b); err != nil {
		return nil, err
	}
	if err := req.UploadHaves.Encode(&b, false); err != nil {
		return nil, err
	}
	err := pktline.NewEncoder(&b).EncodeString("done\n")
	return b.Bytes(), err
}

// mostAnswer is how long an answer may be that holds a pack of at most so many bytes:
// with its packets, and what comes before, which is read into memory.
func mostAnswer(pack int64) int64 { return pack + pack/8 + mostRefs }

// receive reads the answer, of at most so many bytes, and copies the pack in it.
func receive(body io.Reader, most int64, req *packp.UploadPackRequest, w io.Writer) error {
	res := packp.NewUploadPackResponse(req)
	if err := res.Decode(io.NopCloser(io.LimitReader(body, most))); err != nil {
		return err
	}
	var in io.Reader = res
	switch {
	case req.Capabilities.Supports(capability.Sideband64k):
		in = sideband.NewDemuxer(sideband.Sideband64k, res)
	case req.Capabilities.Supports(capability.Sideband):
		in = sideband.NewDemuxer(sideband.Sideband, res)
	}
	// The copy is in pieces of a packet: the demuxer fills what it is given, and so
	// would sit on the last bytes of a connection that has become silent.
	_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{in}, make([]byte, 32<<10))
	return err
}

// refused makes a RemoteError of a line by which a server turned a request down.
func refused(from address, text string) error {
	f := &RemoteError{Kind: ErrUnreachable, Where: from.String(), Detail: "the server says: " + strings.TrimSpace(text), Advice: "it is tried again", temporary: true}
	low := strings.ToLower(text)
	has := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(low, p) {
				return true
			}
		}
		return false
	}
	switch {
	case has("permission denied", "access denied", "not allowed", "unauthorized", "forbidden"):
		f.Kind, f.temporary = ErrDenied, false
		f.Advice = "give the key or token the right to read this repository; some servers say the same where there is none of that name"
	case has("not found", "does not appear to be a git repository", "does not exist", "no such", "not a git repository", "could not be found"):
		f.Kind, f.temporary = ErrNotFound, false
		f.Advice = adviceNotFound
	case has("dubious ownership"):
		f.Kind, f.temporary = ErrDenied, false
		f.Advice = "the repository belongs to another user there; see safe.directory in git's manual"
	}
	return f
}

const adviceNotFound = "look at the path in the URL; many servers say the same where a login is missing or has no right to read it"
