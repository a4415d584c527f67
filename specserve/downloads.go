package specserve

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"net/http"
	"os"
	"strings"

	"github.com/homestak/homestak-gitops/engine/images"
	"github.com/homestak/homestak-gitops/engine/source/serve"
	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// repositoryKey is the kind of the key of the repository, for the log.
const repositoryKey = "repository_key"

// serveRepository answers git, and those who want a file of the repository.
func serveRepository(x *request) error {
	if err := x.authorizeRepository(); err != nil {
		return err
	}
	if x.view.Repository == nil {
		return &wire.Error{Code: wire.CodeNotFound, Message: "the repository is not served: " + x.view.NoRepository, Hint: "specs are served nevertheless"}
	}
	asks := serve.WithClient(x.Context(), cmp.Or(x.shown.Identity, x.shown.Kind))
	err := x.repository.Serve(recorder{x.w, x}, x.WithContext(asks))
	if refused, is := errors.AsType[*serve.RefusalError](err); is {
		return refusal{&wire.Error{Code: codeOf(refused.Status), Message: refused.Message, Hint: refused.Hint}, refused.Status}
	}
	return err
}

// codeOf is the code of a refusal that has a status.
func codeOf(status int) wire.Code {
	switch {
	case status == http.StatusNotFound:
		return wire.CodeNotFound
	case status >= http.StatusInternalServerError:
		return wire.CodeInternal
	default:
		return wire.CodeBadRequest
	}
}

// authorizeRepository lets in who has the key of the repository, and the children that follow it.
func (x *request) authorizeRepository() error {
	x.takePassword()
	if err := x.identify(); err != nil {
		return err
	}
	if key := x.view.Access.Repository; len(key) > 0 && equal(wire.Token(x.Header), string(key)) {
		x.shown.Kind, x.shown.Valid, x.shown.Err = repositoryKey, true, nil
		x.verified()
		return nil
	}
	if err := x.holder(); err != nil {
		return err
	}
	if n := x.view.node(x.shown.Identity); n == nil || !n.Child {
		x.reason = "the node does not follow the repository"
		return &wire.Error{Code: wire.CodeNotYours, Message: "these credentials do not give access to the repository", Hint: "use the key of the repository, or the token of a node of type pve"}
	}
	return nil
}

// holder requires a valid credential; of one that belongs to a node, that the rules of the site let the node
// in.
func (x *request) holder() error {
	switch {
	case x.shown.Kind == policy.NoCredential:
		return &wire.Error{Code: wire.CodeNoCredential, Message: "a credential is required"}
	case !x.shown.Valid:
		return &wire.Error{Code: wire.CodeOf(x.shown.Err), Cause: x.shown.Err}
	case x.shown.Identity == "": // the key of the repository, for example, is of no node
		return nil
	}
	if err := x.authorize(x.shown.Identity); err != nil {
		return err
	}
	return nil
}

// takePassword takes the password of HTTP's basic authentication for the credential. The user may have
// any name: git asks for one.
func (x *request) takePassword() {
	if _, password, ok := x.BasicAuth(); ok && password != "" && len(x.Header.Values("Authorization")) == 1 {
		x.Header.Set("Authorization", "Bearer "+password)
	}
}

// equal compares in constant time, also if the lengths differ.
func equal(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// serveAgent sends the program.
func serveAgent(x *request) error {
	if err := x.identify(); err != nil {
		return err
	}
	if err := x.holder(); err != nil {
		return err
	}
	if x.o.Program == nil || strings.TrimPrefix(x.URL.EscapedPath(), string(wire.AgentPath)) != ProgramSystem() {
		message := "this server has no program for other machines"
		if x.o.Program != nil {
			message = "the server has the program for " + ProgramSystem() + " only"
		}
		return &wire.Error{Code: wire.CodeNotFound, Message: message, Hint: "install the program of the same version on the node by hand, as /usr/local/bin/homestak-gitops"}
	}
	x.w.Header().Set(wire.VersionHeader, x.o.Version)
	if why := keepsProgram(x); why != "" {
		x.w.Header().Set(wire.KeepHeader, why)
	}
	return tooBusy(x.w, x.o.Program.Serve(recorder{x.w, x}, x.Request))
}

// keepsProgram says why the child that asks is to keep the program that it has; "" if it is not.
func keepsProgram(x *request) string {
	if n := x.view.node(x.shown.Identity); n == nil || !n.Child {
		return ""
	}
	in := x.view.Catalog.in
	return in.Site.KeepsProgram(in.Agent, x.shown.Identity, x.o.Version, x.o.Program.Sum(), x.Runs, x.now)
}

// tooBusy makes the answer of a download that did not get its turn.
func tooBusy(w http.ResponseWriter, err error) error {
	if errors.Is(err, errBusy) {
		w.Header().Set("Retry-After", "10")
		return &wire.Error{Code: wire.CodeTooMany, Message: err.Error()}
	}
	return err
}

// Images are those that children may get. Open opens one that is here; images.ErrLoading: it is being downloaded.
type Images interface {
	Open(i images.Image) (*os.File, error)
}

// serveImage sends an image that something in the subtree of the child needs.
func serveImage(x *request) error {
	if err := x.identify(); err != nil {
		return err
	}
	if err := x.holder(); err != nil {
		return err
	}
	child := x.view.node(x.shown.Identity)
	if child == nil || !child.Child {
		x.reason = "the node is not a child"
		return &wire.Error{Code: wire.CodeNotYours, Message: "these credentials do not give access to images", Hint: "use the token of a host below, or of a node of type pve"}
	}
	i, needed := x.view.Catalog.image(child.Name, strings.TrimPrefix(x.URL.EscapedPath(), string(wire.ImagePath)))
	if x.o.Images == nil || !needed {
		return &wire.Error{Code: wire.CodeNotFound, Message: "this server does not have the image for this child", Hint: "set serve_images in agent.hcl; an image without a checksum, or one that no guest of the child needs, is not served"}
	}
	file, err := x.o.Images.Open(i)
	switch {
	case errors.Is(err, images.ErrLoading):
		x.w.Header().Set("Retry-After", unavailable)
		return x.send(http.StatusAccepted, "application/json", []byte("{}\n"))
	case err != nil:
		x.reason = err.Error()
		return &wire.Error{Code: wire.CodeNotFound, Message: "this server could not download the image", Hint: "download it from its URL"}
	}
	defer func() { _ = file.Close() }() // only read
	return tooBusy(x.w, x.images.send(recorder{x.w, x}, x.Request, i.Sum, file))
}

// published is a resource that is downloaded.
type published interface{ Published() images.Image }

// image finds an image that a child or what is below it needs, by its checksum.
func (c *Catalog) image(child, sum string) (images.Image, bool) {
	if len(sum) != hex.EncodedLen(sha256.Size) || c.Node(child) == nil {
		return images.Image{}, false
	}
	for _, name := range c.in.Site.OwnersFrom(child) {
		want, _ := c.in.Site.Want(name) // the commit has been checked
		for _, r := range want.State {
			if p, is := r.Spec.(published); is && p.Published().Sum == sum && len(p.Published().URLs) > 0 {
				return p.Published(), true
			}
		}
	}
	return images.Image{}, false
}

// agentSums are the checksums of what serveAgent sends.
func (x *request) agentSums() map[string]string {
	if x.o.Program == nil {
		return nil
	}
	return x.o.Program.Sums()
}

// recorder notes what others answer.
type recorder struct {
	http.ResponseWriter
	x *request
}

// WriteHeader implements http.ResponseWriter.
func (r recorder) WriteHeader(status int) {
	r.x.status = status
	r.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (r recorder) Write(b []byte) (int, error) {
	r.x.status = cmp.Or(r.x.status, http.StatusOK)
	n, err := r.ResponseWriter.Write(b)
	r.x.sent += n
	return n, err
}

// Unwrap is for http.ResponseController.
func (r recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
