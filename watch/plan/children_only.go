package plan

import (
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
)

// FromChildren gives an Infra as far as its children tell: enough to explain where connections and names go, for a
// process that reads nothing else.
func FromChildren(key types.NamespacedName, dns *v1alpha1.DNSServer, proxy *v1alpha1.ProxyServer) *Infra {
	infra := &Infra{
		Object: &v1alpha1.Infra{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}},
		DNS:    dns, Proxy: proxy,
	}
	if dns != nil {
		infra.cidr, _ = netip.ParsePrefix(dns.Spec.NetworkConfig.SecondaryNetworkCIDR)
	}
	if proxy == nil {
		return infra
	}
	byName := map[string]*Attachment{}
	for _, b := range proxy.Spec.Backends {
		a := byName[b.Attachment]
		if a == nil {
			a = &Attachment{Object: &v1alpha1.InfraClusterAttachment{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: b.Attachment}}}
			byName[b.Attachment] = a
			infra.Attachments = append(infra.Attachments, a)
		}
		if b.Hostname != "" || len(a.Sources) > 0 {
			continue
		}
		for _, text := range b.SourcePrefixRanges {
			if prefix, err := netip.ParsePrefix(text); err == nil {
				a.Sources = append(a.Sources, Source{Claim: Claim{Address: prefix.Addr(), Attachment: a.Key()}})
			}
		}
	}
	return infra
}
