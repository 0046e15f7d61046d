// The dumbbell of DCE Cradle on ns-3's native TCP: two senders, two routers, two receivers, 2 Mbit/s and 100 ms between the routers,
// 5 % loss of data at the right router. Prints the goodput of the first flow at its receiver, in kbit/s.
//
// Built and run by `l2relay-bench dumbbell` (bench/src/dumbbell/ns3.rs). Arguments: --mss --delack --seed --seconds --loss --flows --delay.
#include "ns3/applications-module.h"
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"

#include <iostream>

using namespace ns3;

int main(int argc, char* argv[])
{
    uint32_t mss = 536, delack = 2, seed = 1, seconds = 60, flows = 1, delay = 100;
    double loss = 5;
    CommandLine cmd(__FILE__);
    cmd.AddValue("mss", "payload of a segment, bytes", mss);
    cmd.AddValue("delack", "segments for one acknowledgement", delack);
    cmd.AddValue("seed", "number of the run", seed);
    cmd.AddValue("seconds", "how long the flows send", seconds);
    cmd.AddValue("loss", "per cent of the data", loss);
    cmd.AddValue("flows", "1 or 2", flows);
    cmd.AddValue("delay", "one way, ms", delay);
    cmd.Parse(argc, argv);

    RngSeedManager::SetRun(seed);
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(mss));
    // As in the original; newer releases of ns-3 begin with CUBIC.
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", TypeIdValue(TcpNewReno::GetTypeId()));
    Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(delack));

    NodeContainer left(2), right(2), routers(2);
    InternetStackHelper stack;
    stack.InstallAll();

    PointToPointHelper access, bottleneck;
    access.SetDeviceAttribute("DataRate", StringValue("5Mbps"));
    access.SetChannelAttribute("Delay", StringValue("1ns"));
    bottleneck.SetDeviceAttribute("DataRate", StringValue("2Mbps"));
    bottleneck.SetChannelAttribute("Delay", TimeValue(MilliSeconds(delay)));

    NetDeviceContainer middle = bottleneck.Install(routers);
    Ptr<RateErrorModel> errors = CreateObject<RateErrorModel>();
    errors->SetUnit(RateErrorModel::ERROR_UNIT_PACKET);
    errors->SetRate(loss / 100);
    middle.Get(1)->SetAttribute("ReceiveErrorModel", PointerValue(errors));

    Ipv4AddressHelper address("10.1.0.0", "255.255.255.0");
    address.Assign(middle);
    Ipv4InterfaceContainer receivers;
    for (uint32_t i = 0; i < 2; i++)
    {
        address.NewNetwork();
        address.Assign(access.Install(left.Get(i), routers.Get(0)));
        address.NewNetwork();
        receivers.Add(address.Assign(access.Install(right.Get(i), routers.Get(1))).Get(0));
    }
    Ipv4GlobalRoutingHelper::PopulateRoutingTables();

    ApplicationContainer sinks;
    for (uint32_t i = 0; i < flows; i++)
    {
        PacketSinkHelper sink("ns3::TcpSocketFactory", InetSocketAddress(Ipv4Address::GetAny(), 5001));
        sinks.Add(sink.Install(right.Get(i)));
        BulkSendHelper bulk("ns3::TcpSocketFactory", InetSocketAddress(receivers.GetAddress(i), 5001));
        bulk.SetAttribute("SendSize", UintegerValue(1024));
        ApplicationContainer source = bulk.Install(left.Get(i));
        source.Start(Seconds(4));
        source.Stop(Seconds(4 + seconds));
    }
    Simulator::Stop(Seconds(4 + seconds));
    Simulator::Run();
    uint64_t bytes = DynamicCast<PacketSink>(sinks.Get(0))->GetTotalRx();
    std::cout << bytes * 8.0 / seconds / 1000 << std::endl;
    Simulator::Destroy();
}
